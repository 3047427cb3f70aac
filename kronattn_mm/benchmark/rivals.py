"""A layer of this package and what a user would take in its place, as contestants.

What each name in ``RIVALS`` stands for is said there. ``static`` needs a layer in the place of a
convolution; ``NonLocal`` and ``SDPA`` build n x n similarities, or go through them, and are left
out above a number that would take gigabytes or minutes.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .. import layers
from ..cost import executed_cost
from ..layers.attention_block import AttentionBlock
from ..ops import use_backend
from ..ops.regrouped import regrouped_cost
from .contest import Contestant, Entry, Needs

OURS = 'kronattn_mm'
RIVALS = {
    'straightforward': "the layer's own form that reads like the equations",
    'compiled': 'that form under torch.compile',
    'NonLocal': "mmcv's non-local block, as wide inside, with its similarities in memory",
    'SDPA': "the same block by torch's fused attention",
    'static': 'a plain convolution, for layers that take the place of one',
    'floor': 'products, exponentials and copies alone, at the rates of the same run',
}
# Similarities of a batch at most: in memory, and passed through.
_STORED, _PASSED = 1 << 28, 1 << 30


class FusedAttention(AttentionBlock):
    """Dot-product attention by torch's fused kernel between the projections of a block."""

    def __init__(self, spatial_dims: int, in_channels: int, inner_channels: int) -> None:
        self.spatial_dims = spatial_dims
        super().__init__(in_channels, inner_channels, inner_channels, zero_init=False)

    def attend(self, query: Tensor, x: Tensor) -> Tensor:
        rows = [
            tokens.transpose(2, 3).contiguous()
            for tokens in (
                query,
                self._split_heads(self.keys(x)),
                self._split_heads(self.values(x)),
            )
        ]
        return functional.scaled_dot_product_attention(*rows, scale=1.0).transpose(2, 3)


def build_layer(name: str, channels: int, arguments: dict[str, Any]) -> nn.Module:
    """Build a layer of ``kronattn_mm.layers`` for a benchmark.

    It starts with weights that do something (``zero_init=False``) where it has that argument;
    one in the place of a convolution has as many outputs as inputs and a 3 x 3 kernel unless
    ``arguments`` say otherwise.

    Args:
        name (str): Name in ``kronattn_mm.layers``.
        channels (int): Channels of the input.
        arguments (dict): Further arguments of its constructor.

    Raises:
        ValueError: If there is no such layer, or what its constructor raises.
        TypeError: What its constructor raises.
    """
    if name not in layers.__all__:
        raise ValueError(f'layer must be one of {", ".join(layers.__all__)}, got {name!r}')
    cls = getattr(layers, name)
    defaults: dict[str, Any] = {}
    if replaces_convolution(cls):
        kernel = arguments.get('kernel_size', 3)
        defaults = dict(out_channels=channels, kernel_size=kernel)
        if isinstance(kernel, int):
            defaults['padding'] = kernel // 2
    if 'zero_init' in inspect.signature(cls).parameters:
        defaults['zero_init'] = False
    return cls(channels, **{**defaults, **arguments})


def replaces_convolution(layer: type | nn.Module) -> bool:
    """Say whether a layer takes the place of a convolution."""
    cls = layer if isinstance(layer, type) else type(layer)
    return 'kernel_size' in inspect.signature(cls).parameters


def default_rivals(layer: nn.Module) -> list[str]:
    """Return the rivals that say something about a layer."""
    if replaces_convolution(layer):
        return ['straightforward', 'compiled', 'static', 'floor']
    if isinstance(layer, (layers.ShiftBalance2d, layers.SqueezeExcite2d)):
        return ['straightforward', 'compiled', 'floor']
    return ['straightforward', 'compiled', 'NonLocal', 'SDPA', 'floor']


def enter_layer(
    layer: nn.Module, x: Tensor, rivals: Sequence[str], training: bool = False
) -> tuple[Entry, dict[str, str]]:
    """Put a layer and its rivals in a contest on one input.

    Args:
        layer (nn.Module): A layer of this package, on the input's device and in its dtype.
        x (Tensor): Input, ``(N, C, *spatial)``.
        rivals (Sequence[str]): Names in ``RIVALS``.
        training (bool): Forward and backward pass in training mode. Defaults to False.

    Returns:
        tuple[Entry, dict[str, str]]: The contest, and why rivals that were named are not in it.

    Raises:
        ValueError: If a rival is unknown or does not go with the layer.
        ImportError: If mmcv is missing and ``'NonLocal'`` named.
    """
    for rival in rivals:
        if rival not in RIVALS:
            raise ValueError(f'rivals must be among {", ".join(RIVALS)}, got {rival!r}')
    if 'static' in rivals and not replaces_convolution(layer):
        raise ValueError(f"{type(layer).__name__} takes the place of no convolution ('static')")
    layer.train(training)
    members, left_out = [_contestant(OURS, layer, x, training, 'auto')], {}
    if 'straightforward' in rivals:
        members.append(_contestant('straightforward', layer, x, training, 'reference'))
    if 'compiled' in rivals:
        # Each map gets code of its own, as where all pictures have one size.
        torch.compiler.reset()
        compiled = torch.compile(layer, dynamic=False)
        members.append(_contestant('compiled', compiled, x, training, 'reference', layer))
    similarities = x.shape[0] * math.prod(x.shape[2:]) ** 2
    width = getattr(layer, 'key_channels', x.shape[1])
    for name, build, most in (('NonLocal', _non_local, _STORED), ('SDPA', FusedAttention, _PASSED)):
        if name not in rivals:
            continue
        if similarities > most:
            left_out[name] = f'{similarities:.2g} similarities'
            continue
        if name == 'NonLocal' and x.shape[1] % width:
            left_out[name] = f'it has a whole fraction of {x.shape[1]} channels inside, not {width}'
            continue
        block = build(x.dim() - 2, x.shape[1], width).to(x.device, x.dtype).train(training)
        members.append(_contestant(name, block, x, training))
    if 'static' in rivals:
        members.append(_contestant('static', _static(layer, x), x, training))
    return Entry(members, _needs(layer, x, training) if 'floor' in rivals else None), left_out


def pass_of(
    module: Callable[[Tensor], Tensor],
    x: Tensor,
    training: bool,
    backend: str = 'auto',
    weights: nn.Module | None = None,
) -> Callable[[], Any]:
    """Return a function that runs a module forward, or forward and backward.

    Args:
        module (Callable): From ``x`` to one tensor.
        x (Tensor): Its input.
        training (bool): With a backward pass down to the input.
        backend (str): Of :func:`kronattn_mm.ops.use_backend`. Defaults to ``'auto'``.
        weights (nn.Module, optional): Whose gradients are dropped after each pass. Defaults to
            ``module``.
    """
    weights = module if weights is None else weights

    def forward() -> Tensor:
        with torch.no_grad(), use_backend(backend):
            return module(x)

    if not training:
        return forward
    x = x.detach().requires_grad_()
    with torch.no_grad():
        gradient = torch.randn_like(module(x))

    def forward_and_backward() -> None:
        with use_backend(backend):
            module(x).backward(gradient)
        x.grad = None
        weights.zero_grad(set_to_none=True)

    return forward_and_backward


def _contestant(
    name: str,
    module: nn.Module,
    x: Tensor,
    training: bool,
    backend: str = 'auto',
    original: nn.Module | None = None,
) -> Contestant:
    weights = tuple((original or module).parameters())
    run = pass_of(module, x, training, backend)
    return Contestant(name, run, (x, *weights), training, original is not None)


def _non_local(spatial_dims: int, in_channels: int, inner_channels: int) -> nn.Module:
    from mmcv.cnn.bricks import NonLocal1d, NonLocal2d, NonLocal3d

    cls = {1: NonLocal1d, 2: NonLocal2d, 3: NonLocal3d}[spatial_dims]
    return cls(
        in_channels, reduction=in_channels // inner_channels, use_scale=False, zeros_init=False
    )


def _static(layer: nn.Module, x: Tensor) -> nn.Module:
    conv = nn.Conv2d(
        layer.in_channels,
        layer.out_channels,
        layer.kernel_size,
        layer.stride,
        layer.padding,
        layer.dilation,
        layer.groups,
        layer.bias is not None,
        layer.padding_mode,
    )
    return conv.to(x.device, x.dtype)


def _needs(layer: nn.Module, x: Tensor, training: bool) -> Needs:
    n, passes = math.prod(x.shape[2:]), 1
    if training:  # each product has two in the backward pass
        passes = 3
    if isinstance(layer, AttentionBlock) and type(layer).__name__.startswith('EfficientAttention'):
        macc = regrouped_cost(
            n, layer.in_channels, layer.key_channels, layer.value_channels, layer.num_heads
        )
        exponentials = 2 * x.shape[0] * n * layer.key_channels
        return Needs(passes * x.shape[0] * macc, x, exponentials)
    with use_backend('reference'):
        return Needs(passes * x.shape[0] * executed_cost(layer, x.shape).macc, x)
