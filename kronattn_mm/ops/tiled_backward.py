"""Backward pass of the tiled block.

With dY given, and every map formed anew tile by tile (one head; the sums are over positions):

    dM   = dY S^T                        S = rho_q(Q)
    dQ   = rho_q'(M^T dY)                and from it the gradients of the queries' weights
    dC   = W_r^T dM,   dA = W_v^T dC     small matrices: context, values, reprojection
    dK   = P (dA^T X - diag(A^T dA))     P = rho_k(K) = exp(K - l)
    dX   = dY + W_q^T dQ + W_k^T dK + dA P

The sum over positions that the softmax of the keys needs, P times its gradient, is the diagonal of
A^T dA, so it takes no pass of its own; nor does the bias of the reprojection, which is that of M.
The two products with X that dK needs are one, of d_k + d_k rows, and so are the last two of dX.
Sums over positions are kept for each of the tiles that are worked on at once, and these are summed
up at the end, so that runs repeat bit for bit.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .projections import Projections, join_heads, split_heads
from .tiled_forward import (
    Gathered,
    Setting,
    as_tokens,
    context_of,
    empty_map,
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
    heads = setting.num_heads
    d_mixing, d_queries, d_query_bias = _backward_of_queries(maps, gathered, projections, setting)

    d_heads = split_heads(d_mixing, 2, heads)
    context = context_of(gathered, projections, setting)
    d_context = split_heads(projections.reprojection, 1, heads).transpose(-2, -1) @ d_heads
    inputs = split_heads(gathered.inputs, 2, heads)
    d_inputs = split_heads(projections.values, 0, heads).transpose(-2, -1) @ d_context
    d_inputs = join_heads(d_inputs, 2)
    if gathered.sums is None:
        d_value_bias = d_context.sum(-1)
    else:
        d_value_bias = d_context @ gathered.sums.unflatten(1, (heads, -1, 1))
    if setting.softmax:
        # A constant in the gradient of a map, which the bias of the values gives, cancels.
        offset = (gathered.inputs * d_inputs).sum(1).neg_()
        d_reprojection_bias = d_mixing.sum((0, 2)) / heads
    else:
        offset = (projections.value_bias.view(heads, 1, -1) @ d_context).flatten(1)
        d_reprojection_bias = maps.dy.sum((0, 2))

    d_keys, d_key_bias = _backward_of_keys(maps, gathered, d_inputs, offset, projections, setting)
    return dx, Projections(
        d_keys,
        d_key_bias,
        d_queries,
        d_query_bias,
        join_heads((d_context @ inputs.transpose(-2, -1)).sum(0), 0),
        d_value_bias.sum(0).flatten(),
        join_heads((d_heads @ context.transpose(-2, -1)).sum(0), 1),
        d_reprojection_bias,
    )


def _backward_of_queries(
    maps: _Maps, gathered: Gathered, projections: Projections, setting: Setting
) -> tuple[Tensor, Tensor, Tensor]:
    """Write the first two terms of dX; return dM and the gradients of the queries' weights."""
    tiles, keys = setting.tiles, len(projections.keys)
    scratch = tiles.scratch(maps.x, 3, keys)
    mixing = mixing_of(gathered, projections, setting)
    d_mixing = tiles.sums(mixing, *mixing.shape[1:])
    d_bias = mixing.new_empty(tiles.images * tiles.of_image, keys)
    d_weights = mixing.new_zeros(tiles.most, *projections.queries.shape)
    for group, part in tiles.parts(maps.x):
        dy = group.of(maps.dy)
        query = queries_of(group, part, projections, setting, scratch[0])
        group.of_sums(d_mixing).baddbmm_(dy, query.transpose(1, 2))
        d_query = group.part(scratch[1])
        torch.bmm(group.of_images(mixing).transpose(1, 2), dy, out=d_query)
        if setting.softmax:
            _softmax_backward(d_query, query, group.part(scratch[2]), setting.num_heads)
        torch.sum(d_query, 2, out=group.of_tiles(d_bias))
        d_weights[: group.count].baddbmm_(d_query, part.transpose(1, 2))
        back = projections.queries.T.expand(group.count, -1, -1)
        torch.baddbmm(dy, back, d_query, out=group.of(maps.dx))
    return d_mixing.sum(1), d_weights.sum(0), d_bias.sum(0)


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
) -> tuple[Tensor, Tensor]:
    """Add the last two terms of dX; return the gradients of the keys' weights.

    ``offset``, ``(N, d_k)``, is what is added to dA^T X before it is multiplied by the maps.
    """
    tiles, (keys, channels) = setting.tiles, projections.keys.shape
    (scratch,) = tiles.scratch(maps.x, 1, 2 * keys)
    d_bias = maps.x.new_zeros(keys)
    d_weights = maps.x.new_zeros(tiles.most, keys, channels)
    # dA^T X and K are the rows of one product, dK and P those that another takes; under scaling
    # P = K / n.
    factor = 1.0 if setting.softmax else 1 / tiles.positions
    weights = projections.keys.T.expand(len(d_inputs), -1, -1)
    of_rows = torch.cat([d_inputs, weights], 2).mul_(factor).transpose(1, 2)
    back = torch.cat([weights, d_inputs], 2)
    of_keys = -gathered.log_sums if setting.softmax else projections.key_bias.expand_as(offset)
    start = torch.cat([offset, of_keys], 1).mul_(factor)[:, :, None]
    for group, part in reversed(tiles.parts(maps.x)):
        both = group.part(scratch)
        torch.baddbmm(group.of_images(start), group.of_images(of_rows), part, out=both)
        d_key, weight = both[:, :keys], both[:, keys:]
        if setting.softmax:
            d_key.mul_(weight.exp_())
        else:
            d_bias.add_(d_key.sum((0, 2)))
        d_weights[: group.count].baddbmm_(d_key, part.transpose(1, 2))
        group.of(maps.dx).baddbmm_(group.of_images(back), both)
    return d_weights.sum(0), d_bias
