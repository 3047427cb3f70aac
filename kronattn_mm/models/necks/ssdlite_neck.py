"""The extra levels of SSDLite as inverted residuals.

The code that "Shift-and-Balance Attention" (arXiv 2103.13080, section 5.2) builds on,
github.com/qfgaohao/pytorch-ssd, makes each coarser level with a MobileNetV2 block of stride 2,
narrowed by an expansion factor below 1. mmdet's ``SSDNeck`` has two convolutions there, of a fixed
ratio.
"""

from collections.abc import Sequence

from mmdet.models.layers import InvertedResidual
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...layers.arguments import positive_int, positive_number
from ...registry import MODELS


@MODELS.register_module()
class SSDLiteNeck(BaseModule):
    """Adds coarser levels to the maps of a backbone, each by an inverted residual of stride 2.

    Args:
        in_channels (Sequence[int]): Channels of the maps that the backbone returns; they are
            passed on as they are, and the last is the input of the first extra level.
        extra_channels (Sequence[int]): Output channels of each extra level.
        expand_ratios (Sequence[float]): Hidden channels of each extra level as a multiple of its
            input channels, rounded.
        norm_cfg (dict, optional): Norm of the convolutions. Defaults to batch norm.
        act_cfg (dict, optional): Activation. Defaults to ReLU6.
        init_cfg (dict, optional): Initialisation. Defaults to uniform Xavier.

    Raises:
        TypeError: If channels are not integers or ratios not numbers.
        ValueError: If there are no maps, or not as many ratios as extra levels.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        extra_channels: Sequence[int],
        expand_ratios: Sequence[float],
        norm_cfg: dict | None = None,
        act_cfg: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(
            dict(type='Xavier', layer='Conv2d', distribution='uniform')
            if init_cfg is None
            else init_cfg
        )
        if not in_channels:
            raise ValueError('in_channels must have at least one entry, got none')
        if len(extra_channels) != len(expand_ratios):
            raise ValueError(
                'extra_channels and expand_ratios must have the same length, got '
                f'{extra_channels!r} and {expand_ratios!r}'
            )
        self.in_channels = tuple(positive_int('each of in_channels', n) for n in in_channels)
        self.out_channels = self.in_channels + tuple(
            positive_int('each of extra_channels', n) for n in extra_channels
        )
        norm_cfg = dict(type='BN') if norm_cfg is None else norm_cfg
        act_cfg = dict(type='ReLU6') if act_cfg is None else act_cfg
        # A ModuleList of torch: mmengine's would lead `init_weights` on to mmcv's ConvModules,
        # which draw their weights anew and forget `init_cfg`.
        self.extra_layers = nn.ModuleList()
        channels = self.in_channels[-1]
        for out_channels, ratio in zip(extra_channels, expand_ratios, strict=True):
            hidden = round(channels * positive_number('each of expand_ratios', ratio))
            self.extra_layers.append(
                InvertedResidual(
                    channels,
                    out_channels,
                    mid_channels=positive_int('hidden channels', hidden),
                    stride=2,
                    norm_cfg=norm_cfg,
                    act_cfg=act_cfg,
                )
            )
            channels = out_channels

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the maps ``(N, in_channels[i], H_i, W_i)`` given and the extra ones.

        Raises:
            ValueError: If the number of maps is another one.
        """
        if len(inputs) != len(self.in_channels):
            raise ValueError(
                f'{type(self).__name__} takes {len(self.in_channels)} maps, got {len(inputs)}'
            )
        outs = list(inputs)
        for layer in self.extra_layers:
            outs.append(layer(outs[-1]))
        return tuple(outs)
