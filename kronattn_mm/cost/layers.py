"""From a built layer and the shape of its input to the formula of a paper.

A layer is recognised by its library and the name of its class, so that no library has to be
imported for a layer that is not there. A class derived from it is another layer: what it adds is
in no formula. A new layer type is one more small function here.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from .competing import cgnl, latent_gnn
from .kronecker import kan_regular, kao_kv, kao_qkv, pooled_positions
from .paper import PaperCost, efficient_attention, non_local
from .shift_balance import cond_conv, dynamic_conv, scaled_attention, shift_balance

LayerFormula = Callable[[nn.Module, Sequence[int]], PaperCost | None]
LAYERS: dict[str, LayerFormula] = {}


def formula_for(*names: str) -> Callable[[LayerFormula], LayerFormula]:
    """Make a formula known for classes of these names, such as ``'mmcv.NonLocal2d'``.

    The formula gets the layer and the spatial shape of its input, and may return None if it does
    not cover the way this layer is set up.
    """

    def register(formula: LayerFormula) -> LayerFormula:
        LAYERS.update(dict.fromkeys(names, formula))
        return formula

    return register


def layer_cost(layer: nn.Module, shape: Sequence[int]) -> PaperCost | None:
    """Return the cost of a layer in the accounting of its paper.

    Args:
        layer (nn.Module): An attention layer.
        shape (Sequence[int]): Shape ``(N, C, *spatial)`` of its input; the cost is for one image,
            whatever N is.

    Returns:
        PaperCost, optional: None if no paper gives a formula for such a layer. That of an attended
        convolution is what the attention adds to the plain one.
    """
    cls = type(layer)
    formula = LAYERS.get(f'{cls.__module__.partition(".")[0]}.{cls.__name__}')
    return None if formula is None else formula(layer, tuple(shape[2:]))


@formula_for(
    'kronattn_mm.EfficientAttention1d',
    'kronattn_mm.EfficientAttention2d',
    'kronattn_mm.EfficientAttention3d',
)
def _efficient_attention(layer: nn.Module, spatial: Sequence[int]) -> PaperCost:
    return efficient_attention(
        math.prod(spatial),
        layer.in_channels,
        layer.key_channels,
        layer.value_channels,
        layer.num_heads,
    )


@formula_for('kronattn_mm.RegularAttention2d')
def _regular_attention(layer: nn.Module, spatial: Sequence[int]) -> PaperCost:
    pooled = pooled_positions(spatial) if layer.pooling else None
    return non_local(
        math.prod(spatial),
        layer.in_channels,
        layer.key_channels,
        layer.value_channels,
        layer.num_heads,
        key_positions=pooled,
    )


@formula_for('kronattn_mm.LatentGNN2d')
def _latent_gnn(layer: nn.Module, spatial: Sequence[int]) -> PaperCost:
    return latent_gnn(
        math.prod(spatial),
        layer.in_channels,
        layer.latent_channels,
        layer.channel_stride,
        symmetric=layer.mode == 'symmetric',
    )


@formula_for('kronattn_mm.CGNL2d')
def _cgnl(layer: nn.Module, spatial: Sequence[int]) -> PaperCost:
    return cgnl(
        math.prod(spatial), layer.in_channels, layer.inner_channels, layer.groups, layer.order
    )


@formula_for('mmcv.NonLocal1d', 'mmcv.NonLocal2d', 'mmcv.NonLocal3d')
def _mmcv_non_local(layer: nn.Module, spatial: Sequence[int]) -> PaperCost | None:
    # The other modes have no separate keys and queries, or no product of them.
    if layer.mode not in ('embedded_gaussian', 'dot_product'):
        return None
    pooled = None
    if layer.sub_sample:
        # A volume is pooled over height and width only.
        pooled = math.prod(spatial[:-2]) * math.prod(size // 2 for size in spatial[-2:])
    return non_local(
        math.prod(spatial),
        layer.in_channels,
        layer.inter_channels,
        layer.inter_channels,
        key_positions=pooled,
    )


@formula_for('kronattn_mm.UnfoldedAttention2d')
def _unfolded_attention(layer: nn.Module, spatial: Sequence[int]) -> PaperCost:
    return kan_regular(
        positions=math.prod(spatial),
        key_positions=pooled_positions(spatial) if layer.pooling else None,
        **_transformed(layer),
    )


@formula_for('kronattn_mm.KroneckerAttention2d', 'kronattn_mm.KroneckerAttention3d')
def _kronecker_attention(layer: nn.Module, spatial: Sequence[int]) -> PaperCost:
    if layer.mode == 'qkv':
        return kao_qkv(averages=sum(spatial), **_transformed(layer))
    return kao_kv(positions=math.prod(spatial), averages=sum(spatial), **_transformed(layer))


def _transformed(layer: nn.Module) -> dict[str, Any]:
    return dict(
        in_channels=layer.in_channels,
        transforms=layer.transforms,
        key_channels=layer.key_channels,
        out_channels=layer.out_channels,
        coefficient_norm=layer.coefficient_norm is not None,
    )


@formula_for('kronattn_mm.ShiftBalanceConv2d', 'kronattn_mm.SqueezeExciteConv2d')
def _attended_convolution(layer: nn.Module, spatial: Sequence[int]) -> PaperCost:
    formula = shift_balance if hasattr(layer.attention, 'lambda_') else scaled_attention
    return formula(
        positions=math.prod(spatial),
        out_positions=math.prod(_convolved(layer, spatial)),
        **_branch(layer.attention),
    )


@formula_for('kronattn_mm.ShiftBalance2d', 'kronattn_mm.SqueezeExcite2d')
def _attention_block(layer: nn.Module, spatial: Sequence[int]) -> PaperCost:
    formula = shift_balance if hasattr(layer, 'lambda_') else scaled_attention
    return formula(positions=math.prod(spatial), **_branch(layer))


@formula_for('kronattn_mm.DynamicConv2d')
def _dynamic_convolution(layer: nn.Module, spatial: Sequence[int]) -> PaperCost:
    return dynamic_conv(
        in_channels=layer.in_channels,
        hidden_channels=layer.attention.fc1.out_features,
        **_kernels(layer),
    )


@formula_for('kronattn_mm.CondConv2d')
def _conditional_convolution(layer: nn.Module, spatial: Sequence[int]) -> PaperCost:
    return cond_conv(in_channels=layer.in_channels, **_kernels(layer))


def _branch(branch: nn.Module) -> dict[str, int]:
    weights = branch.fc1.weight.numel() + branch.fc2.weight.numel()
    return dict(
        in_channels=branch.in_channels,
        hidden_channels=branch.hidden_channels,
        out_channels=branch.out_channels,
        extra_params=sum(item.numel() for item in branch.parameters()) - weights,
    )


def _kernels(layer: nn.Module) -> dict[str, int]:
    kernels = layer.attention.kernels
    return dict(
        num_kernels=len(kernels) + 1,
        kernel_params=sum(item.numel() for item in kernels[0].parameters()),
    )


def _convolved(layer: nn.Module, spatial: Sequence[int]) -> tuple[int, ...]:
    """Return height and width of a convolution's output."""
    if layer.padding == 'same':
        return tuple(spatial)
    padding = (0, 0) if layer.padding == 'valid' else layer.padding
    return tuple(
        (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
        for size, pad, dilation, kernel, stride in zip(
            spatial, padding, layer.dilation, layer.kernel_size, layer.stride, strict=True
        )
    )
