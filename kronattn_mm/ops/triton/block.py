"""The efficient-attention block by Triton's kernels: their launches and what lies between them.

Paper: "Efficient Attention: Attention with Linear Complexities" (arXiv 1812.01243), section 3.2.
Forward is :mod:`.forward`, three launches; backward :mod:`.backward`, two launches and products of
``d_k`` x ``d`` matrices in torch. What is kept for the backward pass beside the input: the context,
the mixing matrix and one number for each key channel.

Precision: products take operands of the compute dtype (the input's, or autocast's) and add up in
float32; so do maxima, sums and exponentials. Weights enter unnormalised, between 0 and 1, and the
sum is divided: a weight of 1/71,680 is below the smallest normal float16. The backward pass has
normalised weights and gradients of any size; for float16 it multiplies in TF32, which has float16's
precision and float32's range. float32 products take three TF32 products each, near float32's
precision, or one if ``torch.backends.cuda.matmul.allow_tf32`` is set.
"""

import contextlib
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..checks import without_autocast
from ..projections import Projections
from .availability import padded, padded_keys

# Positions of a part at least, so that partial sums stay small beside the map.
_LEAST_PART = 512
# Positions of a tile, channels of which a program accumulates gradients, and warps; for float32,
# then for half precision. Halved where keys or values have more than 64 rows.
_TILES = {
    'gather': ((32, None, 4), (128, None, 8)),
    'write': ((64, None, 4), (128, None, 8)),
    'query_side': ((32, 64, 8), (64, 128, 8)),
    'key_side': ((32, 64, 8), (64, 128, 8)),
}
_MERGED = 1024  # values of one key channel that a merging program holds, over parts and channels


class _Launch(NamedTuple):
    """Constants of the kernels for one layer: sizes, and what is compiled in."""

    channels: int
    key_channels: int
    value_channels: int
    num_heads: int
    softmax: bool
    dtype: torch.dtype
    precision: str

    def sizes(self) -> dict[str, Any]:
        return dict(
            CHANNELS=self.channels,
            KEY_CHANNELS=self.key_channels,
            SOFTMAX=self.softmax,
            DTYPE=_name(self.dtype),
            PRECISION=self.precision,
        )

    def heads(self) -> dict[str, int]:
        heads_padded = 1 << (self.num_heads - 1).bit_length()
        return dict(
            HEADS=self.num_heads,
            HEADS_PADDED=heads_padded,
            KEYS=self.key_channels // self.num_heads,
            KEYS_PADDED=padded_keys(self.key_channels, self.num_heads) // heads_padded,
        )

    def tiles(self, kernel: str) -> dict[str, int]:
        """How much of the map a program takes at a time, and its warps.

        No value depends on the number of positions: Triton compiles anew for each. They were
        chosen so that registers hold what a program works with (:mod:`tests/ahead_of_time`).
        """
        half = self.dtype != torch.float32
        wide = max(padded_keys(self.key_channels, self.num_heads), padded(self.value_channels)) > 64
        tile, own, warps = _TILES[kernel][half]
        chunk = min(64 if half else 32, padded(self.channels))
        tiles = dict(TILE=tile // 2 if wide else tile, CHUNK=chunk, num_warps=warps, num_stages=2)
        if own is not None:
            tiles['OWN'] = min(own // 2 if wide else own, padded(self.channels))
        return tiles


def block(
    x: Tensor, projections: Projections, num_heads: int, normalization: str, dtype: torch.dtype
) -> Tensor:
    """Return x plus its reprojected efficient attention.

    Args:
        x (Tensor): Feature map, ``(N, d, *spatial)``, that
            :func:`~kronattn_mm.ops.triton.availability.why_not` has nothing against.
        projections (Projections): Weights and biases, of any floating-point dtype; a bias may be
            None.
        num_heads (int): Heads among which key and value channels are divided.
        normalization (str): ``'softmax'`` or ``'scaling'``.
        dtype (torch.dtype): What operands of products are rounded to.

    Returns:
        Tensor: Of the shape, dtype and memory format of ``x``. It can be differentiated once.
    """
    projections = Projections(
        *[None if tensor is None else tensor.contiguous() for tensor in projections]
    )
    launch = _Launch(
        x.shape[1],
        projections.keys.shape[0],
        projections.values.shape[0],
        num_heads,
        normalization == 'softmax',
        dtype,
        'tf32' if dtype != torch.float32 or torch.backends.cuda.matmul.allow_tf32 else 'tf32x3',
    )
    if torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (x, *projections)
    ):
        return _Block.apply(x, launch, *projections)
    return _forward(x, projections, launch)[0]


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, launch: _Launch, *weights: Tensor | None) -> Tensor:
        out, *kept = _forward(x, Projections(*weights), launch)
        ctx.save_for_backward(x, *kept, *weights)
        ctx.launch = launch
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *kept = ctx.saved_tensors
        with without_autocast(x):
            dx, grads = _backward(x, grad, *kept[:3], Projections(*kept[3:]), ctx.launch)
        return dx if ctx.needs_input_grad[0] else None, None, *grads


def _forward(
    x: Tensor, projections: Projections, launch: _Launch
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the block's output, the context, the mixing matrix and one number a key channel."""
    from . import forward as kernels

    tokens, out = x.flatten(2), _empty_like(x)
    images, d, positions = tokens.shape
    d_k, d_v = launch.key_channels, launch.value_channels
    tiles = launch.tiles('gather')
    parts, part_positions = _parts(x, positions, images, tiles['TILE'])
    # Sums are float32 whatever the map's dtype.
    contexts = _float(x, images, parts, d_v, d_k)
    maxima, totals = _float(x, images, parts, d_k), _float(x, images, parts, d_k)
    context, mixing, sums = (
        _float(x, images, d_v, d_k),
        _float(x, images, d, d_k),
        _float(x, images, d_k),
    )
    with _on(x.device):
        kernels.gather[(parts, images)](
            tokens,
            projections.keys,
            projections.key_bias,
            projections.values,
            contexts,
            maxima,
            totals,
            positions,
            part_positions,
            *tokens.stride(),
            **launch.sizes(),
            VALUE_CHANNELS=d_v,
            KEY_ROWS=padded(d_k),
            VALUE_ROWS=padded(d_v),
            **tiles,
        )
        columns = 16
        kernels.merge[(-(-d_k // columns), images)](
            contexts,
            maxima,
            totals,
            projections.value_bias,
            projections.reprojection,
            projections.reprojection_bias,
            context,
            sums,
            mixing,
            parts,
            1 / positions,
            CHANNELS=d,
            KEY_CHANNELS=d_k,
            VALUE_CHANNELS=d_v,
            VALUE_ROWS=padded(d_v),
            HEADS=launch.num_heads,
            SOFTMAX=launch.softmax,
            PARTS=max(1, _MERGED // padded(d_v)),
            COLUMNS=columns,
            CHUNK=tiles['CHUNK'],
            num_warps=8,
        )
        tiles = launch.tiles('write')
        result = out.flatten(2)
        kernels.write[(-(-positions // tiles['TILE']), images)](
            tokens,
            projections.queries,
            projections.query_bias,
            mixing,
            projections.reprojection_bias,
            result,
            positions,
            *tokens.stride(),
            *result.stride(),
            **launch.sizes(),
            **launch.heads(),
            **tiles,
        )
    return out, context, mixing, sums


def _backward(
    x: Tensor,
    grad: Tensor,
    context: Tensor,
    mixing: Tensor,
    sums: Tensor,
    projections: Projections,
    launch: _Launch,
) -> tuple[Tensor, Projections]:
    """Return the gradients of the input and of the projections."""
    from . import backward as kernels

    tokens, dy, dx = x.flatten(2), grad.flatten(2), _empty_like(x)
    images, d, positions = tokens.shape
    d_k, softmax = launch.key_channels, launch.softmax
    tiles = launch.tiles('query_side')
    programs = -(-d // tiles['OWN'])
    parts, part_positions = _parts(x, positions, images * programs, tiles['TILE'])
    grid = programs, parts, images
    constants = dict(
        **launch.sizes(),
        **launch.heads(),
        GRAD_DTYPE=_name(torch.float32 if launch.dtype == torch.float16 else launch.dtype),
        **tiles,
    )
    weights = projections.queries, projections.query_bias

    of_mixing, of_queries = _float(x, images, parts, d, d_k), _float(x, images, parts, d, d_k)
    of_query_bias, of_out_bias = _float(x, images, parts, d_k), _float(x, images, parts, d)
    with _on(x.device):
        kernels.query_side[grid](
            tokens,
            dy,
            *weights,
            mixing,
            of_mixing,
            of_queries,
            of_query_bias,
            of_out_bias,
            positions,
            part_positions,
            *tokens.stride(),
            *dy.stride(),
            **constants,
        )
    d_mixing = of_mixing.sum(1)
    d_queries, d_query_bias = of_queries.sum((0, 1)).T, of_query_bias.sum((0, 1))
    d_out_bias = of_out_bias.sum((0, 1))

    d_reprojection = torch.einsum('ndk,nvk->dv', d_mixing, context)
    d_context = projections.reprojection.float().T @ d_mixing
    if launch.num_heads > 1:
        d_context = d_context * _same_head(x.device, launch)
    d_gathered = projections.values.float().T @ d_context
    # What is added to dA^T X: the gradient that reaches the bias of the values, and under softmax
    # minus the sum over positions of map times gradient, of which that bias's part cancels.
    offsets = torch.zeros_like(sums)
    if projections.value_bias is not None:
        offsets = offsets + projections.value_bias.float() @ d_context
    if softmax:
        offsets = offsets - (context * d_context).sum(1)

    of_keys, gathered = _float(x, images, parts, d, d_k), _float(x, images, parts, d, d_k)
    of_key_bias = _float(x, images, parts, d_k)
    out = dx.flatten(2)
    with _on(x.device):
        kernels.key_side[grid](
            tokens,
            dy,
            *weights,
            projections.keys,
            projections.key_bias,
            mixing,
            d_gathered,
            sums,
            offsets,
            out,
            of_keys,
            gathered,
            of_key_bias,
            positions,
            part_positions,
            1 / positions,
            *tokens.stride(),
            *dy.stride(),
            *out.stride(),
            **constants,
        )
    d_keys, d_key_bias = of_keys.sum((0, 1)).T, of_key_bias.sum((0, 1))
    d_values = torch.einsum('nvk,ndk->vd', d_context, gathered.sum(1))
    # the bias of the keys cancels in the softmax, and a map's weights add up to one
    d_key_bias = torch.zeros_like(d_key_bias) if softmax else d_key_bias
    d_value_bias = (d_context if softmax else d_context * sums[:, None]).sum((0, 2))
    grads = Projections(
        d_keys,
        d_key_bias,
        d_queries,
        d_query_bias,
        d_values,
        d_value_bias,
        d_reprojection,
        d_out_bias,
    )
    return dx, Projections(
        *[
            None if weight is None else grad.to(weight.dtype)
            for grad, weight in zip(grads, projections, strict=True)
        ]
    )


def _parts(x: Tensor, positions: int, programs_of_part: int, tile: int) -> tuple[int, int]:
    """Return into how many parts the positions are split, and how many each has at most.

    There are two programs for each multiprocessor where the map is large enough. The result
    depends on sizes and on the card alone, so that runs repeat bit for bit.
    """
    wanted = 2 * _multiprocessors(x.device)
    parts = max(1, min(positions // _LEAST_PART, -(-wanted // programs_of_part)))
    part_positions = -(-positions // parts)
    part_positions = -(-part_positions // tile) * tile
    return -(-positions // part_positions), part_positions


def _multiprocessors(device: torch.device) -> int:
    if device.type != 'cuda':
        return 2  # the interpreter runs program after program
    return torch.cuda.get_device_properties(device).multi_processor_count


def _same_head(device: torch.device, launch: _Launch) -> Tensor:
    """Ones where a value channel and a key channel are of the same head, ``(d_v, d_k)``."""
    values = torch.arange(launch.value_channels, device=device)
    keys = torch.arange(launch.key_channels, device=device)
    values = values // (launch.value_channels // launch.num_heads)
    keys = keys // (launch.key_channels // launch.num_heads)
    return (values[:, None] == keys).float()


def _name(dtype: torch.dtype) -> Any:
    import triton.language as tl

    return {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}[
        dtype
    ]


def _float(x: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=x.device)


def _empty_like(x: Tensor) -> Tensor:
    out = torch.empty_like(x)  # keeps channels_last
    try:
        out.view(*x.shape[:2], -1)
    except RuntimeError:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return out


def _on(device: torch.device) -> AbstractContextManager:
    # Triton launches on the current device, whichever one the tensors are on.
    return torch.cuda.device(device) if device.type == 'cuda' else contextlib.nullcontext()
