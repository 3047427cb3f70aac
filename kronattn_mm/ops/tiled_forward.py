"""Forward pass of the tiled block: gather the input by the key maps, mix it by the queries.

A tile has a softmax over positions of its own, with its own log-sum-exp l_t; A is the sum of what
the tiles gathered, each with the share exp(l_t - l) that it has in the softmax over all positions.
So the tiles depend on each other only through a few numbers, and once l is known none of them
needs the others.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .fresh_memory import in_large_pages
from .projections import Projections, join_heads, split_heads
from .tiles import Group, Tiles


class Setting(NamedTuple):
    """What does not change from tile to tile."""

    num_heads: int
    softmax: bool
    tiles: Tiles


class Gathered(NamedTuple):
    """What the keys gather, and what the backward pass forms their maps from."""

    inputs: Tensor  # A, (N, d, d_k)
    sums: Tensor  # s, (N, d_k): sums of the key maps
    log_sums: Tensor  # l, (N, d_k): under softmax the key maps are exp(K - l)


def forward(x: Tensor, projections: Projections, setting: Setting) -> tuple[Tensor, Gathered]:
    """Return the block's output, and what its backward pass needs beside ``x``."""
    out = empty_map(x)
    tokens, result = as_tokens(x), as_tokens(out)
    scratch = setting.tiles.scratch(x, 2, len(projections.keys))
    gathered = _gather(tokens, projections, setting, scratch)
    mixing = mixing_of(gathered, projections, setting)
    for group in setting.tiles.groups(backwards=True):
        part = group.of(tokens)
        query = queries_of(group, part, projections, setting, scratch)
        torch.baddbmm(part, group.of_images(mixing), query, out=group.of(result))
    if not setting.softmax:
        result.add_(projections.reprojection_bias[:, None])
    return out, gathered


def _gather(
    tokens: Tensor, projections: Projections, setting: Setting, scratch: Sequence[Tensor]
) -> Gathered:
    tiles, keys = setting.tiles, len(projections.keys)
    number = tiles.images * tiles.of_image
    inputs, sums = tokens.new_empty(number, tokens.shape[1], keys), tokens.new_empty(number, keys)
    for group in tiles.groups():
        part = group.of(tokens)
        weight = _keys_of(group, part, projections, setting, scratch)
        if setting.softmax:
            # The largest weight is exp(largest key - log-sum-exp).
            largest = group.part(scratch[0]).amax(2)
            torch.sub(largest, weight.amax(2).log_(), out=group.of_tiles(sums))
        else:
            torch.sum(weight, 2, out=group.of_tiles(sums))
        torch.bmm(part, weight.transpose(1, 2), out=group.of_tiles(inputs))

    sums = sums.view(tiles.images, tiles.of_image, keys)
    inputs = inputs.view(tiles.images, tiles.of_image, tokens.shape[1], keys)
    if setting.softmax:
        # Of the tiles' own maps, each with its share in the softmax over all positions.
        gathered = inputs.mul_(sums.softmax(1)[:, :, None]).sum(1)
        return Gathered(gathered, tokens.new_ones(tiles.images, keys), sums.logsumexp(1))
    # Both factors 1/sqrt(n) stand here, so that the numbers are averages.
    sums = sums.sum(1).div_(tiles.positions)
    return Gathered(inputs.sum(1).div_(tiles.positions), sums, torch.zeros_like(sums))


def _keys_of(
    group: Group,
    part: Tensor,
    projections: Projections,
    setting: Setting,
    scratch: Sequence[Tensor],
) -> Tensor:
    """Return the tiles' own key maps, ``(count, d_k, length)``; under softmax, keys in the first.

    Under scaling they have no factor here.
    """
    key, weights = group.part(scratch[0]), projections.keys.expand(group.count, -1, -1)
    if setting.softmax:
        torch.bmm(weights, part, out=key)
        return torch.softmax(key, 2, out=group.part(scratch[1]))
    return torch.baddbmm(projections.key_bias[:, None], weights, part, out=key)


def queries_of(
    group: Group,
    part: Tensor,
    projections: Projections,
    setting: Setting,
    scratch: Sequence[Tensor],
) -> Tensor:
    """Return the tiles' normalised queries, ``(count, d_k, length)``, in the first of ``scratch``.

    Under scaling they have no factor here.
    """
    weights = projections.queries.expand(group.count, -1, -1)
    query = group.part(scratch[0])
    torch.baddbmm(projections.query_bias[:, None], weights, part, out=query)
    if setting.softmax:
        of_heads = query.unflatten(1, (setting.num_heads, -1))
        torch.softmax(of_heads, 2, out=of_heads)
    return query


def mixing_of(gathered: Gathered, projections: Projections, setting: Setting) -> Tensor:
    """Return M, ``(N, d, d_k)``, under softmax with the reprojection's bias in it."""
    if setting.softmax and setting.num_heads == 1:
        # The sums of the maps are one: each bias is what a product begins with.
        images = len(gathered.inputs)
        values = projections.values.expand(images, -1, -1)
        context = torch.baddbmm(projections.value_bias[:, None], values, gathered.inputs)
        reprojection = projections.reprojection.expand(images, -1, -1)
        return torch.baddbmm(projections.reprojection_bias[:, None], reprojection, context)
    reprojection = split_heads(projections.reprojection, 1, setting.num_heads)
    mixing = join_heads(reprojection @ context_of(gathered, projections, setting), 2)
    if setting.softmax:  # the queries of each head add up to one
        mixing = mixing + projections.reprojection_bias[:, None] / setting.num_heads
    return mixing


def context_of(gathered: Gathered, projections: Projections, setting: Setting) -> Tensor:
    """Return each head's context, ``(N, heads, d_v / heads, d_k / heads)``."""
    heads = setting.num_heads
    values = split_heads(projections.values, 0, heads)
    context = values @ split_heads(gathered.inputs, 2, heads)
    sums = gathered.sums.unflatten(1, (heads, 1, -1))
    return context.add_(projections.value_bias.view(heads, -1, 1) * sums)


def as_tokens(x: Tensor) -> Tensor:
    """Return ``(N, d, *spatial)`` as ``(N, d, n)``: a view whichever way channels are stored."""
    return x.flatten(2)


def empty_map(x: Tensor) -> Tensor:
    """Return memory for a map like ``x``, channels_last if it is, that :func:`as_tokens` views."""
    out = torch.empty_like(x)
    try:
        out.view(*x.shape[:2], -1)
    except RuntimeError:  # height and width change places in memory
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return in_large_pages(out)
