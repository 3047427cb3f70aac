"""Attention layers over the operators of :mod:`kronattn_mm.ops`; torch alone is needed.

They take ``in_channels`` by keyword and keep the shape of what they are given, which is all that
``kronattn_mm.Plugged`` and mmcv's plugins ask for. :mod:`kronattn_mm.registry` makes them known
to the OpenMMLab registries.
"""

from .cgnl import CGNL2d
from .dynamic_conv import CondConv2d, DynamicConv2d
from .efficient_attention import EfficientAttention1d, EfficientAttention2d, EfficientAttention3d
from .kronecker_attention import KroneckerAttention2d, KroneckerAttention3d
from .latent_gnn import LatentGNN2d
from .regular_attention import RegularAttention2d
from .shift_balance import ShiftBalance2d, ShiftBalanceConv2d
from .squeeze_excite import SqueezeExcite2d, SqueezeExciteConv2d
from .unfolded_attention import UnfoldedAttention2d

__all__ = [
    'CGNL2d',
    'CondConv2d',
    'DynamicConv2d',
    'EfficientAttention1d',
    'EfficientAttention2d',
    'EfficientAttention3d',
    'KroneckerAttention2d',
    'KroneckerAttention3d',
    'LatentGNN2d',
    'RegularAttention2d',
    'ShiftBalance2d',
    'ShiftBalanceConv2d',
    'SqueezeExcite2d',
    'SqueezeExciteConv2d',
    'UnfoldedAttention2d',
]
