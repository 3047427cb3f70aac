"""mmcv's non-local module for volumes, by name.

mmcv has it beside the one for maps but registers only that one. Table 7 of the efficient-attention
paper (arXiv 1812.01243) finds that such a module needs 9.68 TB in PSMNet.
"""

from mmcv.cnn import NonLocal3d

from ...registry import MODELS

MODELS.register_module(module=NonLocal3d)
