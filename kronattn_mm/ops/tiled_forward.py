"""Forward pass of the tiled block: gather the input by the key maps, mix it by the queries.

A tile has a softmax over positions of its own, with its own log-sum-exp l_t; A is the sum of what
the tiles gathered, each with the share exp(l_t - l) that it has in the softmax over all positions.
So the tiles depend on each other only through a few numbers, and once l is known none of them
needs the others.
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
    # s, (N, d_k): sums of the key maps; None under softmax, where they are one
    sums: Tensor | None = None
    # l, (N, d_k): under softmax the key maps are exp(K - l); None where no backward pass follows
    log_sums: Tensor | None = None


def forward(
    x: Tensor, projections: Projections, setting: Setting, training: bool
) -> tuple[Tensor, Gathered]:
    """Return the block's output, and what its backward pass needs beside ``x`` if one follows."""
    out = empty_map(x)
    if not training:  # see there why
        in_large_pages(out)
    result, parts = as_tokens(out), setting.tiles.parts(as_tokens(x))
    (scratch,) = setting.tiles.scratch(x, 1, len(projections.keys))
    gathered = _gather(parts, projections, setting, scratch, training)
    mixing = mixing_of(gathered, projections, setting)
    for group, part in reversed(parts):
        query = queries_of(group, part, projections, setting, scratch)
        torch.baddbmm(part, group.of_images(mixing), query, out=group.of(result))
    if not setting.softmax:
        result.add_(projections.reprojection_bias[:, None])
    return out, gathered


def _gather(
    parts: list[tuple[Group, Tensor]],
    projections: Projections,
    setting: Setting,
    scratch: Tensor,
    training: bool,
) -> Gathered:
    tiles, (keys, channels) = setting.tiles, projections.keys.shape
    number = tiles.images * tiles.of_image
    inputs, sums = scratch.new_empty(number, channels, keys), scratch.new_empty(number, keys)
    for group, part in parts:
        key, weights = group.part(scratch), projections.keys.expand(group.count, -1, -1)
        if setting.softmax:
            torch.bmm(weights, part, out=key)
            # The largest weight is exp(largest key - log-sum-exp).
            largest = key.amax(2)
            torch.softmax(key, 2, out=key)
            torch.sub(largest, key.amax(2).log_(), out=group.of_tiles(sums))
        else:
            torch.baddbmm(projections.key_bias[:, None], weights, part, out=key)
            torch.sum(key, 2, out=group.of_tiles(sums))
        torch.bmm(part, key.transpose(1, 2), out=group.of_tiles(inputs))

    sums = sums.view(tiles.images, tiles.of_image, keys)
    inputs = inputs.view(tiles.images, tiles.of_image, channels, keys)
    if setting.softmax:
        # Of the tiles' own maps, each with its share in the softmax over all positions.
        gathered = inputs.mul_(sums.softmax(1)[:, :, None]).sum(1)
        return Gathered(gathered, log_sums=sums.logsumexp(1) if training else None)
    # Both factors 1/sqrt(n) stand here, so that the numbers are averages.
    averages = inputs.sum(1).div_(tiles.positions)
    return Gathered(averages, sums=sums.sum(1).div_(tiles.positions))


def queries_of(
    group: Group, part: Tensor, projections: Projections, setting: Setting, scratch: Tensor
) -> Tensor:
    """Return the tiles' normalised queries, ``(count, d_k, length)``, in ``scratch``.

    Under scaling they have no factor here.
    """
    weights = projections.queries.expand(group.count, -1, -1)
    query = group.part(scratch)
    torch.baddbmm(projections.query_bias[:, None], weights, part, out=query)
    if setting.softmax:
        of_heads = query.unflatten(1, (setting.num_heads, -1))
        torch.softmax(of_heads, 2, out=of_heads)
    return query


def mixing_of(gathered: Gathered, projections: Projections, setting: Setting) -> Tensor:
    """Return M, ``(N, d, d_k)``, under softmax with the reprojection's bias in it."""
    if setting.softmax and setting.num_heads == 1:
        # What each map adds up to is one: its bias is what a product begins with.
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
    bias = projections.value_bias.view(heads, -1, 1)
    if gathered.sums is not None:
        bias = bias * gathered.sums.unflatten(1, (heads, 1, -1))
    return context.add_(bias)


def as_tokens(x: Tensor) -> Tensor:
    """Return ``(N, d, *spatial)`` as ``(N, d, n)``: a view whichever way channels are stored."""
    return x.flatten(2)


def empty_map(x: Tensor) -> Tensor:
    """Return memory for a map like ``x``, channels_last if it is, that :func:`as_tokens` views."""
    out = torch.empty_like(x)
    if not out.is_contiguous():
        try:
            out.view(*x.shape[:2], -1)
        except RuntimeError:  # height and width change places in memory
            out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return out
