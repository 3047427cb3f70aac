"""Backward pass of the tiled block.

With dY given, and every map formed anew tile by tile (one head; the sums are over positions):

    dM   = dY S^T                        S = rho_q(Q)
    dQ   = rho_q'(M^T dY)                and from it the gradients of the queries' weights
    dC   = W_r^T dM,   dA = W_v^T dC     small matrices: context, values, reprojection
    dK   = P (dA^T X - diag(A^T dA))     P = rho_k(K)
    dX   = dY + W_q^T dQ + dA P + W_k^T dK

The sum over positions that the softmax of the keys needs, P times its gradient, is the diagonal of
A^T dA, so it takes no pass of its own; nor does the bias of the reprojection, which is that of M.
Weight gradients are summed up for each of the tiles that are worked on at once, and these at the
end, so that runs repeat bit for bit.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .projections import Projections, join_heads, split_heads
from .tiled_forward import (
    Gathered,
    Scratch,
    Setting,
    as_tokens,
    context_of,
    empty_map,
    keys_of,
    mixing_of,
    queries_of,
)


class _Maps(NamedTuple):
    """The maps, ``(N, d, n)`` each."""

    x: Tensor
    dy: Tensor
    dx: Tensor


def backward(
    x: Tensor, dy: Tensor, gathered: Gathered, projections: Projections, setting: Setting
) -> tuple[Tensor, Projections]:
    """Return the gradients of the input and of the weights."""
    dx = empty_map(x)
    maps = _Maps(as_tokens(x), as_tokens(dy), as_tokens(dx))
    keys, tiles, heads = len(projections.keys), setting.tiles, setting.num_heads
    scratch = Scratch(tiles.scratch(x, keys), tiles.scratch(x, keys))
    of_gradient = tiles.scratch(x, keys)
    d_mixing, d_queries, d_query_bias = _backward_of_queries(
        maps, gathered, projections, setting, scratch, of_gradient
    )

    d_heads = split_heads(d_mixing, 2, heads)
    context = context_of(gathered, projections, setting)
    d_context = split_heads(projections.reprojection, 1, heads).transpose(-2, -1) @ d_heads
    inputs = split_heads(gathered.inputs, 2, heads)
    d_inputs = split_heads(projections.values, 0, heads).transpose(-2, -1) @ d_context
    d_inputs = join_heads(d_inputs, 2)
    sums = gathered.sums.unflatten(1, (heads, -1, 1))
    if setting.softmax:
        # A constant in the gradient of a map, which the bias of the values gives, cancels.
        offset = (gathered.inputs * d_inputs).sum(1).neg_()
        d_reprojection_bias = d_mixing.sum((0, 2)) / heads
    else:
        offset = (projections.value_bias.view(heads, 1, -1) @ d_context).flatten(1)
        d_reprojection_bias = maps.dy.sum((0, 2))

    d_keys, d_key_bias = _backward_of_keys(
        maps, gathered, d_inputs, offset, projections, setting, scratch, of_gradient
    )
    return dx, Projections(
        d_keys,
        d_key_bias,
        d_queries,
        d_query_bias,
        join_heads((d_context @ inputs.transpose(-2, -1)).sum(0), 0),
        (d_context @ sums).sum(0).flatten(),
        join_heads((d_heads @ context.transpose(-2, -1)).sum(0), 1),
        d_reprojection_bias,
    )


def _backward_of_queries(
    maps: _Maps,
    gathered: Gathered,
    projections: Projections,
    setting: Setting,
    scratch: Scratch,
    of_gradient: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Write the first two terms of dX; return dM and the gradients of the queries' weights."""
    tiles = setting.tiles
    number = tiles.images * tiles.of_image
    mixing = mixing_of(gathered, projections, setting)
    d_mixing = mixing.new_empty(number, *mixing.shape[1:])
    d_bias = mixing.new_empty(number, mixing.shape[2])
    d_weights = mixing.new_zeros(len(of_gradient), *projections.queries.shape)
    for group in tiles.groups():
        dy = group.of(maps.dy)
        query = queries_of(group, maps.x, projections, setting, scratch)
        torch.bmm(dy, query.transpose(1, 2), out=group.of_tiles(d_mixing))
        d_query = group.part(of_gradient)
        torch.bmm(group.of_images(mixing).transpose(1, 2), dy, out=d_query)
        if setting.softmax:
            _softmax_backward(d_query, query, group.part(scratch.second), setting.num_heads)
        torch.sum(d_query, 2, out=group.of_tiles(d_bias))
        d_weights[: group.count].baddbmm_(d_query, group.of(maps.x).transpose(1, 2))
        back = projections.queries.T.expand(group.count, -1, -1)
        torch.baddbmm(dy, back, d_query, out=group.of(maps.dx))
    d_mixing = d_mixing.view(tiles.images, tiles.of_image, *mixing.shape[1:]).sum(1)
    return d_mixing, d_weights.sum(0), d_bias.sum(0)


def _softmax_backward(gradient: Tensor, weight: Tensor, scratch: Tensor, num_heads: int) -> None:
    """Turn the gradient of a softmax over each head's channels into that of its input."""
    torch.mul(gradient, weight, out=scratch)
    average = scratch.unflatten(1, (num_heads, -1)).sum(2, keepdim=True)
    gradient.unflatten(1, (num_heads, -1)).sub_(average)
    gradient.mul_(weight)


def _backward_of_keys(
    maps: _Maps,
    gathered: Gathered,
    d_inputs: Tensor,
    offset: Tensor,
    projections: Projections,
    setting: Setting,
    scratch: Scratch,
    of_gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """Add the last two terms of dX; return the gradients of the keys' weights.

    ``offset``, ``(N, d_k)``, is what is added to dA^T X before it is multiplied by the maps.
    """
    keys, channels = projections.keys.shape
    d_bias = of_gradient.new_zeros(keys)
    d_weights = of_gradient.new_zeros(len(of_gradient), keys, channels)
    d_parts = of_gradient.new_empty(len(of_gradient), channels, keys)
    for group in setting.tiles.groups():
        shares, part, dx = group.of_tiles(gathered.shares), group.of(maps.x), group.of(maps.dx)
        weight = keys_of(group, maps.x, projections, setting, scratch)
        # A tile's share in its maps stands with dA.
        d_part = torch.mul(group.of_images(d_inputs), shares[:, None], out=d_parts[: group.count])
        constant = (group.of_images(offset) * shares)[:, :, None]
        d_key = group.part(of_gradient)
        torch.baddbmm(constant, d_part.transpose(1, 2), part, out=d_key)
        if setting.softmax:
            d_key.mul_(weight)
        else:
            d_bias.add_(d_key.sum((0, 2)))
        d_weights[: group.count].baddbmm_(d_key, part.transpose(1, 2))
        dx.baddbmm_(d_part, weight)
        dx.baddbmm_(projections.keys.T.expand(group.count, -1, -1), d_key)
    return d_weights.sum(0), d_bias
