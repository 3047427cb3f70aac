"""SSDLite's head as github.com/qfgaohao/pytorch-ssd has it, the code on which "Shift-and-Balance
Attention" (arXiv 2103.13080, section 5.2) builds.

Its predictors are those of ``mmdet.SSDHead(use_depthwise=True)``, a depthwise 3x3 convolution,
norm, activation and a 1x1 convolution; but the last level, one position large, has the latter only.
"""

from torch import nn

from ...registry import MODELS
from .ssd_head import SSDHead


@MODELS.register_module()
class SSDLiteHead(SSDHead):
    """``kronattn_mm.SSDHead`` with depthwise predictors at all levels but the last.

    Arguments are those of ``mmdet.SSDHead`` and must include ``use_depthwise=True``.

    Raises:
        ValueError: If ``use_depthwise`` is not True.
    """

    def _init_layers(self) -> None:
        if not self.use_depthwise:
            raise ValueError(
                'SSDLiteHead has depthwise predictors, got use_depthwise='
                f'{self.use_depthwise!r}; without them take kronattn_mm.SSDHead'
            )
        super()._init_layers()
        for predictors in (self.cls_convs, self.reg_convs):
            predictors[-1] = nn.Sequential(predictors[-1][-1])
