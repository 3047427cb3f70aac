"""Attention for any OpenMMLab detector, segmenter or classifier, by config alone.

Importing the package, its ``ops`` or its ``layers`` needs torch and nothing else; whatever needs
mmengine or mmcv is imported when it is first used.
"""

import importlib
import sys
from typing import Any

from .version import __version__

_LAZY = {
    'AttentionMapHook': 'kronattn_mm.engine',
    'Plugged': 'kronattn_mm.plugging',
    'attention_disabled': 'kronattn_mm.plugging',
    'attention_scaled': 'kronattn_mm.plugging',
    'attention_status': 'kronattn_mm.plugging',
    'extract_attention': 'kronattn_mm.plugging.small_file',
    'inserted_layers': 'kronattn_mm.plugging',
    'insertion_shapes': 'kronattn_mm.plugging',
    'load_attention': 'kronattn_mm.plugging.small_file',
    'plug': 'kronattn_mm.plugging',
    'plug_from_file': 'kronattn_mm.plugging.small_file',
    'save_attention': 'kronattn_mm.plugging.small_file',
    'unplug': 'kronattn_mm.plugging',
}

__all__ = ['__version__', *_LAZY]

# `custom_imports = dict(imports=['kronattn_mm'])` in a config is there to fail early: inside a
# program that runs mmengine, errors of registration show now and not as "not in the registry".
if 'mmengine' in sys.modules:
    from . import registry  # noqa: F401


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
