"""The four modules of Kronecker Attention Networks.

Paper: "Kronecker Attention Networks" (arXiv 2007.08442), section 3.5 and Figure 4. With expansion
factor r, stride s, c input and d output channels:

    BaseModule        1x1 to r c, depthwise 3x3 of stride s, 1x1 to d; residual if s = 1 and c = d
    BaseSkipModule    1x1 to (r - 1) c, joined with the input to r c, then as above: c^2
                      fewer weights
    AttnModule        1x1 to (r - 1) c and depthwise; beside it attention on the input, c channels,
                      average-pooled by s; joined to r c, then 1x1 to d: 9 c weights fewer
    AttnSkipModule    AttnModule whose attention path has a skip from its input, unless s > 1

Readings where the paper is silent: Figure 4(d) was not at hand, so the place of AttnSkipModule's
skip is inferred (it is the only one that costs nothing and "can always be added unless s > 1");
there is no norm or activation after the attention; an odd map is pooled to the size that the
depthwise convolution gives, its last window being smaller.

The convolutions have the names of mmdet's inverted residual, so that the blocks which a KANet has
in common with MobileNetV2 load its weights.
"""

from typing import Any, ClassVar

import torch
from mmcv.cnn import ConvModule
from mmengine.model import BaseModule as MMBaseModule
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...layers.arguments import positive_int
from ...plugging.build import build_layer


class Convolution(ConvModule):
    """mmcv's ConvModule that leaves its weights to the ``init_cfg`` of the network.

    mmengine calls ``init_weights`` of a child after the parent's ``init_cfg``, and ConvModule would
    draw its weights anew there, so that the paper's Xavier initialisation would be lost.
    """

    def init_weights(self) -> None:
        """Do nothing; the convolution starts as torch makes it."""


class BaseModule(MMBaseModule):
    """The inverted residual of MobileNetV2, which the other three change (Figure 4(a)).

    Args:
        in_channels (int): Channels c of the input.
        out_channels (int): Channels d of the output.
        stride (int): Stride s of the depthwise convolution, 1 or 2. Defaults to 1.
        expansion (int): Expansion factor r. Defaults to 6.
        attention (dict, optional): Config of the attention layer; only modules with attention
            take one. It gets ``in_channels`` and must keep the shape.
        norm_cfg (dict): Norm of the convolutions. Defaults to batch norm.
        act_cfg (dict): Activation of the convolutions. Defaults to ReLU6.
        with_cp (bool): Recompute the module in the backward pass. Defaults to False.
        init_cfg (dict, optional): Initialisation. Defaults to None.

    Raises:
        ValueError: If stride or expansion do not fit the module, or attention is given to a
            module without, or missing where it is needed.
    """

    uses_attention: ClassVar[bool] = False
    joins_input: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int = 1,
        expansion: int = 6,
        attention: dict[str, Any] | None = None,
        norm_cfg: dict | None = None,
        act_cfg: dict | None = None,
        with_cp: bool = False,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg)
        kind = type(self).__name__
        if stride not in (1, 2):
            raise ValueError(f'stride must be 1 or 2, got {stride!r}')
        if self.uses_attention is (attention is None):
            raise ValueError(
                f'{kind} {"needs" if self.uses_attention else "has no"} attention, '
                f'got attention={attention!r}'
            )
        self.in_channels = positive_int('in_channels', in_channels)
        self.out_channels = positive_int('out_channels', out_channels)
        self.stride = stride
        self.with_cp = with_cp
        self.with_residual = stride == 1 and in_channels == out_channels
        hidden = in_channels * positive_int('expansion', expansion)
        # The part of the hidden channels that convolutions make; the rest is joined to it.
        made = hidden - in_channels if self.joins_input or self.uses_attention else hidden
        if made < 1:
            raise ValueError(f'{kind} needs an expansion of at least 2, got {expansion}')
        norm_cfg = dict(type='BN') if norm_cfg is None else norm_cfg
        act_cfg = dict(type='ReLU6') if act_cfg is None else act_cfg
        depthwise = made if self.uses_attention else hidden
        self.expand_conv = (
            None
            if made == in_channels and expansion == 1
            else Convolution(in_channels, made, 1, norm_cfg=norm_cfg, act_cfg=act_cfg)
        )
        self.depthwise_conv = Convolution(
            depthwise,
            depthwise,
            3,
            stride=stride,
            padding=1,
            groups=depthwise,
            norm_cfg=norm_cfg,
            act_cfg=act_cfg,
        )
        if self.uses_attention:
            self.attention = build_layer(dict(attention, in_channels=in_channels))
            # Rounded up like a convolution of kernel 3 and padding 1.
            self.pool = nn.AvgPool2d(stride, ceil_mode=True) if stride > 1 else nn.Identity()
        self.linear_conv = Convolution(hidden, out_channels, 1, norm_cfg=norm_cfg, act_cfg=None)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(N, in_channels, H, W)`` to ``(N, out_channels, H / stride, W / stride)``."""
        if self.with_cp and x.requires_grad:
            return checkpoint(self._forward, x, use_reentrant=False)
        return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        out = x if self.expand_conv is None else self.expand_conv(x)
        if self.joins_input:
            out = torch.cat([out, x], dim=1)
        out = self.depthwise_conv(out)
        if self.uses_attention:
            out = torch.cat([out, self.pool(self._attend(x))], dim=1)
        out = self.linear_conv(out)
        return x + out if self.with_residual else out

    def _attend(self, x: Tensor) -> Tensor:
        return self.attention(x)


class BaseSkipModule(BaseModule):
    """BaseModule in which the input stands for c of the r c hidden channels (Figure 4(b))."""

    joins_input = True


class AttnModule(BaseModule):
    """BaseModule in which attention makes c of the r c hidden channels (Figure 4(c))."""

    uses_attention = True


class AttnSkipModule(AttnModule):
    """AttnModule with a skip around the attention, which needs a stride of 1 (Figure 4(d))."""

    def _attend(self, x: Tensor) -> Tensor:
        return self.attention(x) + x if self.stride == 1 else self.attention(x)


MODULES = {
    'base': BaseModule,
    'base_skip': BaseSkipModule,
    'attn': AttnModule,
    'attn_skip': AttnSkipModule,
}
