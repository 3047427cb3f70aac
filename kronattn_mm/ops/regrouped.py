"""The whole efficient-attention block with fewer passes over the feature map.

Paper: "Efficient Attention: Attention with Linear Complexities" (arXiv 1812.01243), section 3.2.
The block is x + W_r E + b_r, where E = (V rho_k(K)^T) rho_q(Q) and K, Q, V are 1 x 1 convolutions
of x. Everything around the two normalisations is linear, so the products may be grouped anew
without changing the result (tokens in the last dimension, one head):

    A = X rho_k(W_k X)^T                    the input gathered by the key maps, d x d_k
    M = W_r (W_v A + b_v s^T) + b_r         values and reprojection of d_k vectors, not of n
    Y = X + M rho_q(W_q X + b_q)

s are the sums of the key maps, which are one under softmax, where the bias of the keys cancels and
that of the reprojection may stand in M, since a query's weights add up to one. With heads, M has a
block of columns for each.

Written so, the map is read twice and written once, in tiles of positions that stay in the
processor's cache: maps of keys and queries exist for one tile at a time. The softmax over positions
is taken online: a running maximum and sum for each key channel, and A scaled when the maximum
grows.

The backward pass keeps x, A and one number for each key channel; it forms the maps of a tile anew
(two of 4 d d_k n multiply-accumulates forward, ten backward with them). The sum over positions that
the softmax needs there is the diagonal of A^T dA, so it takes no pass of its own.

Cost, multiply-accumulates: 4 n d d_k + 2 d d_k d_v / heads; the straightforward order has
n d (2 d_k + 2 d_v) + 2 n d_k d_v / heads, which is less for few positions.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Positions in a tile. More threads want larger products; one thread wants them in its cache.
_TILE = 1024
_TILE_OF_THREADS = 4096


class Projections(NamedTuple):
    """Weights of the block's four 1 x 1 convolutions as matrices, and their biases."""

    keys: Tensor  # (d_k, d)
    key_bias: Tensor  # (d_k,)
    queries: Tensor  # (d_k, d)
    query_bias: Tensor  # (d_k,)
    values: Tensor  # (d_v, d)
    value_bias: Tensor  # (d_v,)
    reprojection: Tensor  # (d, d_v)
    reprojection_bias: Tensor  # (d,)


def regrouped_cost(
    positions: int, channels: int, key_channels: int, value_channels: int, num_heads: int = 1
) -> int:
    """Return the multiply-accumulates of :func:`regrouped_attention` for one image."""
    return (
        4 * positions * channels * key_channels
        + 2 * channels * key_channels * value_channels // num_heads
    )


def may_regroup(x: Tensor) -> bool:
    """Say whether :func:`regrouped_attention` takes ``x`` here and now.

    Graphs that are traced, compiled or exported keep the straightforward form, as do counters of
    operations, which work with tensors of other types, and half precision, whose sums need care.
    """
    if type(x) not in (Tensor, torch.nn.Parameter) or x.device.type not in ('cpu', 'cuda'):
        return False
    if x.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled(x.device.type):
        return False
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
    )


def regrouped_attention(
    x: Tensor, projections: Projections, num_heads: int, normalization: str, tile: int | None = None
) -> Tensor:
    """Return x plus its reprojected efficient attention.

    Args:
        x (Tensor): Feature map, ``(N, d, *spatial)``, float32 or float64.
        projections (Projections): Weights and biases.
        num_heads (int): Heads among which key and value channels are divided.
        normalization (str): ``'softmax'`` or ``'scaling'``.
        tile (int, optional): Positions worked on at a time. Defaults to what suits the threads;
            on a GPU to all of them.

    Returns:
        Tensor: Of the shape and memory format of ``x``. It can be differentiated once.
    """
    if tile is None:
        tile = _TILE if torch.get_num_threads() == 1 else _TILE_OF_THREADS
        if x.device.type != 'cpu':
            tile = max(x.shape[2:].numel(), 1)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *projections)):
        return _Block.apply(x, num_heads, normalization, tile, *projections)
    return _forward(x, projections, num_heads, normalization, tile)[0]


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, num_heads: int, normalization: str, tile: int, *weights: Tensor
    ) -> Tensor:
        projections = Projections(*weights)
        out, *gathered = _forward(x, projections, num_heads, normalization, tile)
        ctx.save_for_backward(x, *gathered, *weights)
        ctx.settings = num_heads, normalization, tile
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, inputs, log_sums, sums, *weights = ctx.saved_tensors
        projections = Projections(*weights)
        num_heads, normalization, tile = ctx.settings
        grads = Projections(*map(torch.zeros_like, projections))
        dx = _empty_like(x)
        images = zip(_tokens(x), inputs, log_sums, sums, _tokens(grad), _tokens(dx), strict=True)
        for tokens, gathered, log_sum, sum_, dy, out in images:
            _backward_of_image(
                tokens,
                gathered,
                log_sum,
                sum_,
                dy,
                out,
                projections,
                grads,
                num_heads,
                normalization,
                tile,
            )
        return dx if ctx.needs_input_grad[0] else None, None, None, None, *grads


def _forward(
    x: Tensor, projections: Projections, num_heads: int, normalization: str, tile: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the block's output and, image by image, A, log-sum-exp and s of the key maps."""
    out = _empty_like(x)
    batch, keys = x.shape[0], projections.keys.shape[0]
    inputs = x.new_empty(batch, x.shape[1], keys)
    log_sums, sums = x.new_zeros(batch, keys), x.new_ones(batch, keys)
    for tokens, result, gathered, log_sum, sum_ in zip(
        _tokens(x), _tokens(out), inputs, log_sums, sums, strict=True
    ):
        if normalization == 'softmax':
            log_sum.copy_(_gather_by_softmax(tokens, projections, gathered, tile))
        else:
            sum_.copy_(_gather_by_scaling(tokens, projections, gathered, tile))
        mixing, bias = _mixing(gathered, sum_, projections, num_heads, normalization)
        for part, query in _query_tiles(tokens, projections, num_heads, normalization, tile):
            torch.addmm(tokens[:, part], mixing, query, out=result[:, part])
            if bias is not None:
                result[:, part].add_(bias)
    return out, inputs, log_sums, sums


def _gather_by_softmax(
    tokens: Tensor, projections: Projections, gathered: Tensor, tile: int
) -> Tensor:
    """Write A into ``gathered``; return the log-sum-exp of each key channel over positions."""
    maximum = total = None
    for part in _tiles(tokens, tile):
        key = projections.keys @ tokens[:, part]
        if maximum is None:
            maximum = key.amax(1, keepdim=True)
            total = key.sub_(maximum).exp_().sum(1, keepdim=True)
            torch.mm(tokens[:, part], key.T, out=gathered)
            continue
        higher = torch.maximum(maximum, key.amax(1, keepdim=True))
        shrink = maximum.sub_(higher).exp_()
        maximum = higher
        total.mul_(shrink).add_(key.sub_(maximum).exp_().sum(1, keepdim=True))
        gathered.mul_(shrink.T).addmm_(tokens[:, part], key.T)
    gathered.div_(total.T)
    return maximum.add_(total.log_())[:, 0]


def _gather_by_scaling(
    tokens: Tensor, projections: Projections, gathered: Tensor, tile: int
) -> Tensor:
    """Write A into ``gathered``; return the sum of each key channel over positions.

    Both factors 1/sqrt(n) stand here, so the numbers are averages.
    """
    scale = 1 / tokens.shape[1]
    total = tokens.new_zeros(gathered.shape[1])
    gathered.zero_()
    for part in _tiles(tokens, tile):
        key = torch.addmm(projections.key_bias[:, None], projections.keys, tokens[:, part])
        total.add_(key.sum(1), alpha=scale)
        gathered.addmm_(tokens[:, part], key.T, alpha=scale)
    return total


def _mixing(
    gathered: Tensor, sum_: Tensor, projections: Projections, num_heads: int, normalization: str
) -> tuple[Tensor, Tensor | None]:
    """Return M, ``(d, d_k)``, and the bias ``(d, 1)`` that is still to be added, if any."""
    blocks = [
        reprojection @ context
        for reprojection, context, _ in _heads(gathered, sum_, projections, num_heads)
    ]
    mixing = torch.cat(blocks, dim=1) if num_heads > 1 else blocks[0]
    bias = projections.reprojection_bias[:, None]
    if normalization == 'softmax':
        return mixing.add_(bias / num_heads), None  # the queries of each head add up to one
    return mixing, bias


def _heads(
    gathered: Tensor, sum_: Tensor, projections: Projections, num_heads: int
) -> Iterator[tuple[Tensor, Tensor, tuple[slice, slice]]]:
    """Each head's columns of the reprojection, context ``(d_v, d_k)``, and channel ranges."""
    keys = projections.keys.shape[0] // num_heads
    values = projections.values.shape[0] // num_heads
    for head in range(num_heads):
        key = slice(head * keys, (head + 1) * keys)
        value = slice(head * values, (head + 1) * values)
        context = torch.addmm(
            torch.outer(projections.value_bias[value], sum_[key]),
            projections.values[value],
            gathered[:, key],
        )
        yield projections.reprojection[:, value], context, (key, value)


def _query_tiles(
    tokens: Tensor, projections: Projections, num_heads: int, normalization: str, tile: int
) -> Iterator[tuple[slice, Tensor]]:
    """Each tile and its normalised queries ``(d_k, tile)``; a scaled one has no factor here."""
    for part in _tiles(tokens, tile):
        query = torch.addmm(projections.query_bias[:, None], projections.queries, tokens[:, part])
        if normalization == 'softmax':
            of_heads = query.unflatten(0, (num_heads, -1))
            of_heads.sub_(of_heads.amax(1, keepdim=True)).exp_()
            of_heads.div_(of_heads.sum(1, keepdim=True))
        yield part, query


def _backward_of_image(
    tokens: Tensor,
    gathered: Tensor,
    log_sum: Tensor,
    sum_: Tensor,
    dy: Tensor,
    dx: Tensor,
    projections: Projections,
    grads: Projections,
    num_heads: int,
    normalization: str,
    tile: int,
) -> None:
    """Write the gradient of the tokens into ``dx`` and add those of the weights to ``grads``."""
    softmax = normalization == 'softmax'
    mixing, _ = _mixing(gathered, sum_, projections, num_heads, normalization)
    d_mixing = torch.zeros_like(mixing)
    for part, query in _query_tiles(tokens, projections, num_heads, normalization, tile):
        d_mixing.addmm_(dy[:, part], query.T)
        d_query = mixing.T @ dy[:, part]
        if softmax:
            _softmax_backward(d_query, query, num_heads)
        grads.queries.addmm_(d_query, tokens[:, part].T)
        grads.query_bias.add_(d_query.sum(1))
        torch.addmm(dy[:, part], projections.queries.T, d_query, out=dx[:, part])
    grads.reprojection_bias.add_(dy.sum(1))

    d_gathered = torch.empty_like(gathered)
    d_sum = torch.empty_like(sum_)
    for reprojection, context, (key, value) in _heads(gathered, sum_, projections, num_heads):
        grads.reprojection[:, value].addmm_(d_mixing[:, key], context.T)
        d_context = reprojection.T @ d_mixing[:, key]
        grads.values[value].addmm_(d_context, gathered[:, key].T)
        grads.value_bias[value].add_(d_context @ sum_[key])
        d_gathered[:, key] = projections.values[value].T @ d_context
        d_sum[key] = projections.value_bias[value] @ d_context

    # Sum over positions of map times its gradient; a constant in the gradient (d_sum) cancels.
    average = (gathered * d_gathered).sum(0)[:, None]
    for part in _tiles(tokens, tile):
        if softmax:
            weight = torch.mm(projections.keys, tokens[:, part]).sub_(log_sum[:, None]).exp_()
            d_key = torch.mm(d_gathered.T, tokens[:, part]).sub_(average).mul_(weight)
        else:
            scale = 1 / tokens.shape[1]
            weight = torch.addmm(
                projections.key_bias[:, None], projections.keys, tokens[:, part]
            ).mul_(scale)
            d_key = torch.addmm(d_sum[:, None], d_gathered.T, tokens[:, part]).mul_(scale)
            grads.key_bias.add_(d_key.sum(1))
        grads.keys.addmm_(d_key, tokens[:, part].T)
        dx[:, part].addmm_(d_gathered, weight).addmm_(projections.keys.T, d_key)


def _softmax_backward(gradient: Tensor, weight: Tensor, num_heads: int) -> None:
    """Turn the gradient of a softmax over each head's channels into that of its input."""
    gradient, weight = (tensor.unflatten(0, (num_heads, -1)) for tensor in (gradient, weight))
    gradient.sub_((gradient * weight).sum(1, keepdim=True)).mul_(weight)


def _tiles(tokens: Tensor, tile: int) -> Iterator[slice]:
    for start in range(0, tokens.shape[1], tile):
        yield slice(start, min(start + tile, tokens.shape[1]))


def _tokens(x: Tensor) -> Tensor:
    # (N, d, *spatial) -> (N, d, n), a view of dense tensors whichever way channels are stored
    return x.flatten(2)


def _empty_like(x: Tensor) -> Tensor:
    out = torch.empty_like(x)  # keeps channels_last
    try:
        out.view(*x.shape[:2], -1)
    except RuntimeError:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return out
