"""What the kernels of the efficient-attention block share.

A tile is a ``(channels, positions)`` piece of the feature map. A program holds all keys or queries
of its positions, one channel a row; rows are padded to powers of two, those of each head by
themselves, so that a softmax over a head's channels is a reduction of a reshaped tile.

Sums, maxima, exponentials and accumulators are float32. ``DTYPE`` is what the operands of a product
are rounded to. Triton compiles a kernel anew for other constexpr arguments, and for positions and
strides that are or are not divisible by 16: never for each size of map.
"""

# ruff: noqa: ANN001, ANN201  (a launch gives the arguments of a kernel their types)

import triton
import triton.language as tl


@triton.jit
def dot(left, right, total, DTYPE: tl.constexpr, PRECISION: tl.constexpr):
    """total + left right; ``PRECISION`` says how float32 operands are multiplied."""
    return tl.dot(left.to(DTYPE), right.to(DTYPE), total, input_precision=PRECISION)


@triton.jit
def load_tile(
    x, channel, position, inside, channel_stride, position_stride, CHANNELS: tl.constexpr
):
    """Channels by positions; zero outside the map."""
    places = channel[:, None] * channel_stride
    places += position[None, :] * position_stride
    return tl.load(x + places, mask=(channel[:, None] < CHANNELS) & inside[None, :], other=0)


@triton.jit
def load_matrix(matrix, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows by columns of a small matrix; zero outside, and for rows or columns below zero."""
    return tl.load(
        matrix + row[:, None] * COLUMNS + column[None, :],
        mask=((row >= 0) & (row < ROWS))[:, None] & ((column >= 0) & (column < COLUMNS))[None, :],
        other=0,
    )


@triton.jit
def key_rows(
    HEADS: tl.constexpr, HEADS_PADDED: tl.constexpr, KEYS: tl.constexpr, KEYS_PADDED: tl.constexpr
):
    """For each row of the keys or queries its channel, -1 for padding.

    ``KEYS`` and ``KEYS_PADDED`` are those of one head.
    """
    row = tl.arange(0, HEADS_PADDED * KEYS_PADDED)
    head = row // KEYS_PADDED
    within = row % KEYS_PADDED
    return tl.where((within < KEYS) & (head < HEADS), head * KEYS + within, -1)


@triton.jit
def softmax_over_channels(
    query, row, HEADS_PADDED: tl.constexpr, KEYS_PADDED: tl.constexpr, TILE: tl.constexpr
):
    """The softmax of equation 4's rho_q: over the channels of each head."""
    # A finite number in the padding: a head of nothing but -inf would give 0 / 0.
    query = tl.where((row >= 0)[:, None], query, -1e30)
    heads = tl.reshape(query, (HEADS_PADDED, KEYS_PADDED, TILE))
    heads = tl.exp(heads - tl.max(heads, 1)[:, None, :])
    heads = heads / tl.sum(heads, 1)[:, None, :]
    query = tl.reshape(heads, (HEADS_PADDED * KEYS_PADDED, TILE))
    return tl.where((row >= 0)[:, None], query, 0.0)


@triton.jit
def softmax_over_channels_backward(
    query, gradient, HEADS_PADDED: tl.constexpr, KEYS_PADDED: tl.constexpr, TILE: tl.constexpr
):
    """The gradient of the softmax's input from that of its output, ``query``."""
    heads = tl.reshape(query * gradient, (HEADS_PADDED, KEYS_PADDED, TILE))
    sums = tl.broadcast_to(tl.sum(heads, 1)[:, None, :], (HEADS_PADDED, KEYS_PADDED, TILE))
    return query * (gradient - tl.reshape(sums, (HEADS_PADDED * KEYS_PADDED, TILE)))


@triton.jit
def query_tile(
    x,
    queries,
    query_bias,
    row,
    position,
    inside,
    channel_stride,
    position_stride,
    CHANNELS: tl.constexpr,
    KEY_CHANNELS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    KEYS_PADDED: tl.constexpr,
    SOFTMAX: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """rho_q(W_q X + b_q) for one tile: reads the tile's channels in chunks."""
    query = tl.zeros([HEADS_PADDED * KEYS_PADDED, TILE], tl.float32)
    for first in range(0, CHANNELS, CHUNK):
        channel = first + tl.arange(0, CHUNK)
        tokens = load_tile(x, channel, position, inside, channel_stride, position_stride, CHANNELS)
        weight = load_matrix(queries, row, channel, KEY_CHANNELS, CHANNELS)
        query = dot(weight, tokens, query, DTYPE, PRECISION)
    if query_bias is not None:
        query += tl.load(query_bias + row, mask=row >= 0, other=0).to(tl.float32)[:, None]
    if SOFTMAX:
        query = softmax_over_channels(query, row, HEADS_PADDED, KEYS_PADDED, TILE)
    return query
