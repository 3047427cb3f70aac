"""MobileNetV2 for small pictures: its strides are an argument.

Paper: "Shift-and-Balance Attention" (arXiv 2103.13080), section 5.3, which trains on CIFAR-10 (32 x
32 pixels) with the settings of github.com/kuangliu/pytorch-cifar. That project's MobileNetV2 has
stride 1, where the network for ImageNet has 2, in the first convolution and in the second stage,
so that the last maps are 4 x 4 and not 1 x 1.

Deviation: pytorch-cifar also puts a 1x1 convolution on the shortcut of blocks whose width changes
at stride 1, and uses ReLU for ReLU6; here the blocks are mmpretrain's, so that the convolutions to
attend to are the same 50 as on ImageNet. Which of the two the paper had, it does not say.
"""

from collections.abc import Sequence
from typing import Any

from mmpretrain.models.backbones import MobileNetV2

from ...registry import MODELS


@MODELS.register_module()
class CIFARMobileNetV2(MobileNetV2):
    """``mmpretrain.MobileNetV2`` with other strides; the weights have the same names and shapes.

    Args:
        strides (Sequence[int]): Stride, 1 or 2, of the first convolution and of the first block of
            each of the seven stages. Defaults to (1, 1, 1, 2, 2, 1, 2, 1), pytorch-cifar's, with
            which the last maps have an eighth of the height and width of the picture.
        **arguments: Those of ``mmpretrain.MobileNetV2``, which checks them.

    Raises:
        ValueError: If ``strides`` are not eight numbers, each 1 or 2.
    """

    def __init__(self, strides: Sequence[int] = (1, 1, 1, 2, 2, 1, 2, 1), **arguments: Any) -> None:
        if len(strides) != 8 or any(stride not in (1, 2) for stride in strides):
            raise ValueError(f'strides must be eight numbers, each 1 or 2, got {strides!r}')
        # The table that the parent's constructor reads.
        self.arch_settings = [
            [*settings[:3], stride]
            for settings, stride in zip(MobileNetV2.arch_settings, strides[1:], strict=True)
        ]
        super().__init__(**arguments)
        self.conv1.conv.stride = (strides[0], strides[0])
