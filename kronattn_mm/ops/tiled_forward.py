"""Forward pass of the tiled block: gather the input by the key maps, mix it by the queries.

A tile has a softmax over positions of its own, with its own log-sum-exp l_t; A is the sum of what
the tiles gathered, each with the share exp(l_t - l) that it has in the softmax over all positions.
So the tiles depend on each other only through a few numbers.
"""

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
    shares: Tensor  # (tiles, d_k): by these a tile's own map is multiplied


class Scratch(NamedTuple):
    """Memory for maps of a few tiles, ``(tiles, d_k, positions)`` each."""

    first: Tensor
    second: Tensor


def forward(x: Tensor, projections: Projections, setting: Setting) -> tuple[Tensor, Gathered]:
    """Return the block's output, and what its backward pass needs beside ``x``."""
    out = empty_map(x)
    tokens, result = as_tokens(x), as_tokens(out)
    scratch = Scratch(*(setting.tiles.scratch(x, len(projections.keys)) for _ in range(2)))
    gathered = _gather(tokens, projections, setting, scratch)
    mixing = mixing_of(gathered, projections, setting)
    for group in setting.tiles.groups():
        query = queries_of(group, tokens, projections, setting, scratch)
        torch.baddbmm(group.of(tokens), group.of_images(mixing), query, out=group.of(result))
    if not setting.softmax:
        result.add_(projections.reprojection_bias[:, None])
    return out, gathered


def _gather(
    tokens: Tensor, projections: Projections, setting: Setting, scratch: Scratch
) -> Gathered:
    tiles, keys = setting.tiles, len(projections.keys)
    number = tiles.images * tiles.of_image
    inputs, sums = tokens.new_empty(number, tokens.shape[1], keys), tokens.new_empty(number, keys)
    for group in tiles.groups():
        part = group.of(tokens)
        weight = keys_of(group, tokens, projections, setting, scratch)
        if setting.softmax:
            # The largest weight is exp(largest key - log-sum-exp).
            largest = group.part(scratch.first).amax(2)
            torch.sub(largest, weight.amax(2).log_(), out=group.of_tiles(sums))
        else:
            torch.sum(weight, 2, out=group.of_tiles(sums))
        torch.bmm(part, weight.transpose(1, 2), out=group.of_tiles(inputs))

    sums = sums.view(tiles.images, tiles.of_image, keys)
    inputs = inputs.view(tiles.images, tiles.of_image, tokens.shape[1], keys)
    if setting.softmax:
        shares = sums.softmax(1)
        sums = tokens.new_ones(tiles.images, keys)
    else:  # both factors 1/sqrt(n) stand here, so that the numbers are averages
        shares = torch.full_like(sums, 1 / tiles.positions)
        sums = sums.sum(1) / tiles.positions
    return Gathered(inputs.mul_(shares[:, :, None]).sum(1), sums, shares.flatten(0, 1))


def keys_of(
    group: Group, tokens: Tensor, projections: Projections, setting: Setting, scratch: Scratch
) -> Tensor:
    """Return the tiles' own key maps, ``(count, d_k, length)``; under softmax, keys in ``first``.

    Without the tiles' shares, which are 1/n under scaling.
    """
    key, weights = group.part(scratch.first), projections.keys.expand(group.count, -1, -1)
    if setting.softmax:
        torch.bmm(weights, group.of(tokens), out=key)
        return torch.softmax(key, 2, out=group.part(scratch.second))
    return torch.baddbmm(projections.key_bias[:, None], weights, group.of(tokens), out=key)


def queries_of(
    group: Group, tokens: Tensor, projections: Projections, setting: Setting, scratch: Scratch
) -> Tensor:
    """Return the tiles' normalised queries, ``(count, d_k, length)``, in ``first``.

    Under scaling they have no factor here.
    """
    weights = projections.queries.expand(group.count, -1, -1)
    query = group.part(scratch.first)
    torch.baddbmm(projections.query_bias[:, None], weights, group.of(tokens), out=query)
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
