"""The two halves around Kronecker attention: averages along the axes, and their outer sum.

Paper: "Kronecker Attention Networks" (arXiv 2007.08442), equations 14 and 15 (averages) and 18
(outer sum). Between them stands attention that is there already:

    KAO_KV   (equation 16)  dot_product_attention(X, C, C), with C = axis_averages(X)
    KAO_QKV  (equation 17)  outer_sum(dot_product_attention(C, C, C))

Deviation: any number of axes. With three, each average is over the other two axes, C has one
block for each axis, and the outer sum has three terms; the paper has two axes.

Cost, multiply-accumulates: none. C has (w + h) positions instead of h w. On a CPU the map is taken
in chunks of planes that stay in the processor's cache, so that it comes from memory once for all
averages, and outer sum and residual are written once. Backward likewise: the gradient of an average
is a broadcast and that of a broadcast a sum, so each half's backward pass is the other half, and
nothing is kept for it. ``use_backend('reference')`` keeps to the equations.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .backend import backend
from .checks import eager_on_cpu, in_graph, needs_gradient
from .fresh_memory import in_large_pages

# Bytes of the map that are worked on at a time, few enough to stay in the cache. Pieces that are
# much smaller cost more in calls than they save.
_CHUNK_BYTES = 1 << 22


def axis_averages(x: Tensor) -> Tensor:
    """Average a feature map along all axes but one, for each axis in turn.

    Args:
        x (Tensor): Feature map, ``(N, C, *spatial)`` with one or more spatial axes.

    Returns:
        Tensor: The matrix C of the paper, ``(N, C, sum(spatial))``: the block of the last axis
        first (for an image the ``w`` averages of the columns, H in equation 14), then the axis
        before it (the ``h`` averages of the rows, L), and so on.

    Raises:
        TypeError: If ``x`` is not a floating-point tensor.
        ValueError: If it has no spatial axis.
    """
    return averages_and_map(x)[0]


def averages_and_map(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return :func:`axis_averages` of ``x``, and ``x`` for what else is done with it.

    What uses the second result instead of ``x`` has its gradient and that of the averages added up
    in one pass over the map.

    Args:
        x (Tensor): Feature map, ``(N, C, *spatial)``.

    Returns:
        tuple[Tensor, Tensor]: The averages ``(N, C, sum(spatial))`` and ``x``.

    Raises:
        TypeError: If ``x`` is not a floating-point tensor.
        ValueError: If it has no spatial axis.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f'x must be a floating-point tensor, got {kind}')
    if x.dim() < 3:
        raise ValueError(
            f'x must have the dimensions (batch, channels, *spatial), got shape {tuple(x.shape)}'
        )
    return _reduce(x, average=True)


def outer_sum(o: Tensor, spatial_shape: Sequence[int], residual: Tensor | None = None) -> Tensor:
    """Spread one vector for each axis over the map and add them up.

    Args:
        o (Tensor): One block for each axis, ``(N, C, sum(spatial_shape))``, in the order of
            :func:`axis_averages`.
        spatial_shape (Sequence[int]): Size of the map, ``(h, w)`` for an image.
        residual (Tensor, optional): A map that is added, ``(N, C, *spatial_shape)``.

    Returns:
        Tensor: ``(N, C, *spatial_shape)``; for an image ``Y[a, b] = L[a] + H[b]``.

    Raises:
        ValueError: If the blocks do not fill ``o``, or the residual has another shape.
    """
    spatial_shape = tuple(spatial_shape)
    if o.dim() != 3 or o.shape[-1] != sum(spatial_shape):
        raise ValueError(
            f'o must have the shape (batch, channels, {sum(spatial_shape)}) for a map '
            f'of {" x ".join(map(str, spatial_shape))}, got {tuple(o.shape)}'
        )
    if residual is not None and residual.shape != (*o.shape[:2], *spatial_shape):
        raise ValueError(
            f'residual must have the shape {(*o.shape[:2], *spatial_shape)}, '
            f'got {tuple(residual.shape)}'
        )
    tensors = (o,) if residual is None else (o, residual)
    if _by_planes(spatial_shape, *tensors):
        if needs_gradient(*tensors):
            return _OuterSum.apply(o, residual, spatial_shape)
        return _write_once(o, spatial_shape, residual)
    first, *others = _terms(o, spatial_shape)
    total = sum(others, first)
    if residual is None:
        return total
    # A sum of terms is fresh, so the map may be added in place; under autocast the terms are in
    # half precision, which the result must not be.
    in_place = bool(others) and total.dtype == residual.dtype
    return total.add_(residual) if in_place else residual + total


def _terms(o: Tensor, spatial_shape: tuple[int, ...]) -> list[Tensor]:
    """Each axis's block, the last axis's first, ``(N, C, *)`` with ones for the other axes.

    Sums that begin with the vector that lies along the rows in memory are the fastest.
    """
    terms = []
    for after, block in enumerate(o.split(spatial_shape[::-1], dim=-1)):
        for _ in range(len(spatial_shape) - 1 - after):
            block = block.unsqueeze(2)
        for _ in range(after):
            block = block.unsqueeze(-1)
        terms.append(block)
    return terms


def _reduce(x: Tensor, average: bool) -> tuple[Tensor, Tensor]:
    """Averages or sums, ``(N, C, sum(spatial))``, and ``x``."""
    if not _by_planes(x.shape[2:], x):
        return torch.cat(_blocks(x, average), dim=-1), x
    if needs_gradient(x):
        return _Reduction.apply(x, average)
    return _read_once(x, average), x


def _blocks(x: Tensor, average: bool) -> list[Tensor]:
    """Averages or sums over all axes but one, the last one first, of ``(*, *spatial)``."""
    axes = range(2, x.dim())
    blocks = []
    for kept in reversed(axes):
        others = [axis for axis in axes if axis != kept]
        # mean(), not adaptive pooling, which cannot be exported with sizes left open.
        reduced = x.mean(dim=others) if average else x.sum(dim=others)
        blocks.append(reduced if others else x)
    return blocks


def _by_planes(spatial_shape: Sequence[int], *tensors: Tensor) -> bool:
    """Say whether a map of this size is worked on in chunks of planes, or has such a gradient."""
    if in_graph() or len(spatial_shape) < 2:
        return False
    size = _bytes_of_map(tensors[0], spatial_shape)
    if size <= (0 if needs_gradient(*tensors) else _CHUNK_BYTES):
        return False
    return (
        backend() != 'reference'
        and eager_on_cpu(*tensors)
        and all(tensor.is_contiguous() for tensor in tensors)
    )


def _bytes_of_map(like: Tensor, spatial_shape: Sequence[int]) -> int:
    return like.shape[0] * like.shape[1] * math.prod(spatial_shape) * like.element_size()


class _Reduction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, average: bool) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.spatial_shape, ctx.average = tuple(x.shape[2:]), average
        return _read_once(x, average), x

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor | None, of_map: Tensor | None
    ) -> tuple[Tensor | None, None]:
        if gradient is None:
            return of_map, None
        if ctx.average:
            sizes = ctx.spatial_shape[::-1]
            positions = math.prod(sizes)
            blocks = gradient.split(sizes, dim=-1)
            gradient = torch.cat(
                [block * (size / positions) for size, block in zip(sizes, blocks, strict=True)],
                dim=-1,
            )
        return outer_sum(gradient, ctx.spatial_shape, of_map), None


class _OuterSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, o: Tensor, residual: Tensor | None, spatial_shape: tuple[int, ...]
    ) -> Tensor:
        return _write_once(o, spatial_shape, residual)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        of_vectors = _reduce(gradient, average=False)[0] if ctx.needs_input_grad[0] else None
        return of_vectors, gradient if ctx.needs_input_grad[1] else None, None


def _read_once(x: Tensor, average: bool) -> Tensor:
    planes = x.flatten(0, 1)
    axes = range(1, planes.dim())
    blocks = [planes.new_empty(planes.shape[0], planes.shape[axis]) for axis in reversed(axes)]
    others = [[axis for axis in axes if axis != kept] for kept in reversed(axes)]
    for part in _chunks(x):
        # The sum along the rows first: it reads memory in order, and the others find it cached.
        for block, summed in reversed([*zip(blocks, others, strict=True)]):
            torch.sum(planes[part], summed, out=block[part])
    if average:
        for block, summed in zip(blocks, others, strict=True):
            block.div_(math.prod(planes.shape[axis] for axis in summed))
    return torch.cat(blocks, dim=-1).view(*x.shape[:2], -1)


def _write_once(o: Tensor, spatial_shape: tuple[int, ...], residual: Tensor | None) -> Tensor:
    terms = [term.flatten(0, 1) for term in _terms(o, spatial_shape)]
    if residual is not None:
        terms.append(residual.flatten(0, 1))
    out = in_large_pages(o.new_empty(*o.shape[:2], *spatial_shape))
    planes = out.flatten(0, 1)
    for part in _chunks(out):
        total = planes[part]
        torch.add(terms[0][part].expand_as(total), terms[1][part], out=total)
        for term in terms[2:]:
            total.add_(term[part])
    return out


def _chunks(map_: Tensor) -> Iterator[slice]:
    """Parts of the ``N C`` planes of a map."""
    planes = map_.shape[0] * map_.shape[1]
    size = max(1, _CHUNK_BYTES * planes // _bytes_of_map(map_, map_.shape[2:]))
    for start in range(0, planes, size):
        yield slice(start, start + size)
