"""The block grouped by its inputs, in tiles of positions that stay in the processor's cache.

In the notation of :mod:`.regrouped`: the map is read twice and written once. The maps of keys and
queries exist for a few tiles at a time, in scratch memory that all tiles share.

The backward pass keeps x, A and a number for each key channel; it forms the maps of a tile
anew (two of 4 d d_k n multiply-accumulates forward, ten backward with them), which takes less time
than to fetch them from memory. On a GPU each image is one tile.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .checks import without_autocast
from .projections import Projections
from .tiled_backward import backward
from .tiled_forward import Gathered, Setting, forward
from .tiles import Tiles, divide


def tiled_attention(
    x: Tensor, projections: Projections, num_heads: int, normalization: str, tile: int | None = None
) -> Tensor:
    """Return x plus its reprojected efficient attention.

    Args:
        x (Tensor): Feature map, ``(N, d, *spatial)``.
        projections (Projections): Weights and biases.
        num_heads (int): Heads among which key and value channels are divided.
        normalization (str): ``'softmax'`` or ``'scaling'``.
        tile (int, optional): Positions in a tile. Defaults to what suits the threads.

    Returns:
        Tensor: Of the shape and memory format of ``x``. It can be differentiated once.
    """
    setting = Setting(num_heads, normalization == 'softmax', _division(x, tile))
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *projections)):
        return _Block.apply(x, setting, *projections)
    return forward(x, projections, setting, training=False)[0]


def _division(x: Tensor, tile: int | None) -> Tiles:
    images, positions = x.shape[0], x.shape[2:].numel()
    if tile is not None:
        return Tiles(images, positions, tile, torch.get_num_threads())
    if x.device.type != 'cpu':
        return Tiles(images, positions, positions, images)
    return divide(images, positions, torch.get_num_threads())


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, setting: Setting, *weights: Tensor) -> Tensor:
        out, gathered = forward(x, Projections(*weights), setting, training=True)
        ctx.save_for_backward(x, *gathered, *weights)
        ctx.setting = setting
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, inputs, sums, log_sums, *weights = ctx.saved_tensors
        gathered, projections = Gathered(inputs, sums, log_sums), Projections(*weights)
        # Gradients have the precision of the forward pass, which autocast was not on for.
        with without_autocast(x):
            dx, grads = backward(x, grad, gathered, projections, ctx.setting)
        return dx, None, *grads
