"""mmdet's MobileNetV2 that also returns what the blocks' expansions give.

SSDLite ("MobileNetV2: Inverted Residuals and Linear Bottlenecks", arXiv 1801.04381, section 6.2)
takes its first map from the expansion of the first block at stride 32: the 1x1 convolution that
comes before that block's depthwise convolution, so at stride 16 and with six times the channels of
the stage before. mmdet's MobileNetV2 returns outputs of stages only.
"""

from collections.abc import Sequence
from typing import Any

from mmdet.models.backbones import MobileNetV2
from torch import Tensor, nn

from ...registry import MODELS


@MODELS.register_module()
class ExpansionMobileNetV2(MobileNetV2):
    """``mmdet.MobileNetV2`` with expansions among its outputs; its checkpoints load as they are.

    A stage whose expansion is returned runs block by block, its first one in parts, so nothing can
    be inserted after the stage (``layer6``) or its first block; its last block (``layer6.2``) is
    the same place.

    Args:
        expansion_indices (Sequence[int]): Stages, counted as in ``out_indices``, of which the
            expansion in the first block is returned, 1 (layer2) to 6 (layer7). Its stride is that
            of the stage before, its channels are six times those of that stage. Defaults to
            ``(5, )``: layer6, stride 16, 576 channels at width 1.
        out_indices (Sequence[int]): Stages whose output is returned, as in ``mmdet.MobileNetV2``.
            Defaults to ``(7, )``: conv2, stride 32, 1280 channels.
        **base_arguments: The other arguments of ``mmdet.MobileNetV2``, which checks them.

    Raises:
        ValueError: If a stage is named twice, has no expansion, or is so narrow that its first
            block keeps stride and channels.
    """

    def __init__(
        self,
        expansion_indices: Sequence[int] = (5,),
        out_indices: Sequence[int] = (7,),
        **base_arguments: Any,
    ) -> None:
        super().__init__(out_indices=out_indices, **base_arguments)
        for index in expansion_indices:
            # Stage 0 is a block without expansion, 7 a single convolution.
            if index not in range(1, 7):
                raise ValueError(
                    f'expansion_indices must be from 1 to 6, got {index!r} in {expansion_indices!r}'
                )
            if getattr(self, self.layers[index])[0].with_res_shortcut:
                raise ValueError(
                    f'at widen_factor={self.widen_factor} the first block of '
                    f'{self.layers[index]} has a shortcut, so its expansion cannot '
                    'be returned; take a larger one'
                )
        if len(set(expansion_indices)) < len(expansion_indices):
            raise ValueError(f'expansion_indices names a stage twice: {expansion_indices!r}')
        self.expansion_indices = tuple(expansion_indices)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the chosen expansions and outputs for images ``(N, 3, H, W)``, in order."""
        x = self.conv1(x)
        outs = []
        for index, name in enumerate(self.layers):
            stage = getattr(self, name)
            if index in self.expansion_indices:
                x, expansion = run_and_expand(stage, x)
                outs.append(expansion)
            else:
                x = stage(x)
            if index in self.out_indices:
                outs.append(x)
        return tuple(outs)

    def train(self, mode: bool = True) -> 'ExpansionMobileNetV2':
        """Set the mode as ``mmdet.MobileNetV2`` does, and return the module, which that forgets."""
        super().train(mode)
        return self


def run_and_expand(stage: nn.Sequential, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output of a stage and what the expansion in its first block gave.

    The first block of a stage changes stride or channels and so has no shortcut: its three
    convolutions are all there is to it.
    """
    first, *others = stage
    expansion = first.expand_conv(x)
    x = first.linear_conv(first.depthwise_conv(expansion))
    for block in others:
        x = block(x)
    return x, expansion
