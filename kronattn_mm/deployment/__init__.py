"""Networks and layers outside of Python: ONNX files, torch.export, torch.compile, and proofs.

``kronattn export`` writes an ONNX file of a trained model; ``kronattn support`` tests every layer
in every form and writes down how far each is from the equations. docs/deployment.md tells both.
"""

from .onnx_file import Agreement, ExportError, agreements, write_onnx
from .parts import PARTS, Deployed, choose_part, deployed
from .preprocessing import Normalization

__all__ = [
    'PARTS',
    'Agreement',
    'Deployed',
    'ExportError',
    'Normalization',
    'agreements',
    'choose_part',
    'deployed',
    'write_onnx',
]
