"""The two halves around Kronecker attention: averages along the axes, and their outer sum.

Paper: "Kronecker Attention Networks" (arXiv 2007.08442), equations 14 and 15 (averages) and 18
(outer sum). Between them stands attention that is there already:

    KAO_KV   (equation 16)  dot_product_attention(X, C, C), with C = axis_averages(X)
    KAO_QKV  (equation 17)  outer_sum(dot_product_attention(C, C, C))

Deviation: any number of axes. With three, each average is over the other two axes, C has one
block for each axis, and the outer sum has three terms; the paper has two axes.

Cost, multiply-accumulates: none; the averages read the map once for each axis, the sum writes it
once. C has (w + h) positions instead of h w.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


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
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f'x must be a floating-point tensor, got {kind}')
    if x.dim() < 3:
        raise ValueError(
            f'x must have the dimensions (batch, channels, *spatial), got shape {tuple(x.shape)}'
        )
    axes = range(2, x.dim())
    blocks = []
    for kept in reversed(axes):
        others = [axis for axis in axes if axis != kept]
        # mean(), not adaptive pooling, which cannot be exported with sizes left open.
        blocks.append(x.mean(dim=others) if others else x)
    return torch.cat(blocks, dim=-1)


def outer_sum(o: Tensor, spatial_shape: Sequence[int]) -> Tensor:
    """Spread one vector for each axis over the map and add them up.

    Args:
        o (Tensor): One block for each axis, ``(N, C, sum(spatial_shape))``, in the order of
            :func:`axis_averages`.
        spatial_shape (Sequence[int]): Size of the map, ``(h, w)`` for an image.

    Returns:
        Tensor: ``(N, C, *spatial_shape)``; for an image ``Y[a, b] = L[a] + H[b]``.

    Raises:
        ValueError: If the blocks do not fill ``o``.
    """
    spatial_shape = tuple(spatial_shape)
    if o.dim() != 3 or o.shape[-1] != sum(spatial_shape):
        raise ValueError(
            f'o must have the shape (batch, channels, {sum(spatial_shape)}) for a map '
            f'of {" x ".join(map(str, spatial_shape))}, got {tuple(o.shape)}'
        )
    blocks = o.split(spatial_shape[::-1], dim=-1)
    total = None
    for axis, block in enumerate(reversed(blocks)):
        after = len(spatial_shape) - 1 - axis
        term = block[(..., *[None] * after)]
        term = term.reshape(*o.shape[:2], *[1] * axis, spatial_shape[axis], *[1] * after)
        total = term if total is None else total + term
    return total
