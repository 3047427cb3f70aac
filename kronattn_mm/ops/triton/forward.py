"""Forward pass of the efficient-attention block in three launches.

Paper: "Efficient Attention: Attention with Linear Complexities" (arXiv 1812.01243), section 3.2,
equation 4, with the residual block around it:

    Y = X + W_r (V rho_k(K)^T) rho_q(Q) + b_r,   Q = W_q X + b_q, K = W_k X, V = W_v X + b_v

Each kernel says below what it reads and writes, for n positions, d channels, and S parts into
which the positions are split, since one program for each image would leave a card idle. Of the
size of the map, only Y is written. Biases: that of the keys cancels in a softmax over positions;
that of the values is added to the context, whose maps sum to one; that of the reprojection stands
in the mixing matrix under softmax, where a query's weights add up to one, and is added to Y under
scaling.

Cost, multiply-accumulates: n (3 d d_k + d d_v + d_k d_v); d_k d_v d for the mixing matrix.
"""

# ruff: noqa: ANN001, ANN201  (a launch gives the arguments of a kernel their types)

import triton
import triton.language as tl

from .tiles import dot, key_rows, load_matrix, load_tile, query_tile

__all__ = ['gather', 'merge', 'write']


@triton.jit
def gather(
    x,
    keys,
    key_bias,
    values,
    contexts,
    maxima,
    totals,
    positions,
    part_positions,
    batch_stride,
    channel_stride,
    position_stride,
    CHANNELS: tl.constexpr,
    KEY_CHANNELS: tl.constexpr,
    VALUE_CHANNELS: tl.constexpr,
    KEY_ROWS: tl.constexpr,
    VALUE_ROWS: tl.constexpr,
    SOFTMAX: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One part's share of the context, V exp(K - max)^T (equation 4; scaling: V K^T).

    Launch: (S, images) programs. Reads X once, n d; writes S (d_v d_k + 2 d_k) float32. The maximum
    and the sum of each key channel run along with the tiles, so that exponentials stay in 0..1.
    """
    part, parts, image = tl.program_id(0), tl.num_programs(0), tl.program_id(1)
    x += image.to(tl.int64) * batch_stride
    key_row, value_row = tl.arange(0, KEY_ROWS), tl.arange(0, VALUE_ROWS)
    maximum = tl.full([KEY_ROWS], float('-inf'), tl.float32)
    total = tl.zeros([KEY_ROWS], tl.float32)
    context = tl.zeros([VALUE_ROWS, KEY_ROWS], tl.float32)
    last = tl.minimum((part + 1) * part_positions, positions)
    for start in range(part * part_positions, last, TILE):
        position = start + tl.arange(0, TILE)
        inside = position < last
        key = tl.zeros([KEY_ROWS, TILE], tl.float32)
        value = tl.zeros([VALUE_ROWS, TILE], tl.float32)
        for first in range(0, CHANNELS, CHUNK):
            channel = first + tl.arange(0, CHUNK)
            tokens = load_tile(
                x, channel, position, inside, channel_stride, position_stride, CHANNELS
            )
            weight = load_matrix(keys, key_row, channel, KEY_CHANNELS, CHANNELS)
            key = dot(weight, tokens, key, DTYPE, PRECISION)
            weight = load_matrix(values, value_row, channel, VALUE_CHANNELS, CHANNELS)
            value = dot(weight, tokens, value, DTYPE, PRECISION)
        if SOFTMAX:
            key = tl.where(inside[None, :], key, float('-inf'))
            higher = tl.maximum(maximum, tl.max(key, 1))
            shrink = tl.exp(maximum - higher)
            maximum = higher
            key = tl.exp(key - higher[:, None])
            total *= shrink
            context *= shrink[None, :]
        else:
            if key_bias is not None:
                bias = tl.load(key_bias + key_row, mask=key_row < KEY_CHANNELS, other=0)
                key += bias.to(tl.float32)[:, None]
            key = tl.where(inside[None, :], key, 0.0)
        total += tl.sum(key, 1)
        context = dot(value, tl.trans(key), context, DTYPE, PRECISION)

    out = image * parts + part
    known = key_row < KEY_CHANNELS
    tl.store(maxima + out * KEY_CHANNELS + key_row, maximum, mask=known)
    tl.store(totals + out * KEY_CHANNELS + key_row, total, mask=known)
    contexts += out.to(tl.int64) * (VALUE_CHANNELS * KEY_CHANNELS)
    tl.store(
        contexts + value_row[:, None] * KEY_CHANNELS + key_row[None, :],
        context,
        mask=(value_row < VALUE_CHANNELS)[:, None] & known[None, :],
    )


@triton.jit
def merge(
    contexts,
    maxima,
    totals,
    value_bias,
    reprojection,
    reprojection_bias,
    context,
    sums,
    mixing,
    parts,
    scale,
    CHANNELS: tl.constexpr,
    KEY_CHANNELS: tl.constexpr,
    VALUE_CHANNELS: tl.constexpr,
    VALUE_ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    SOFTMAX: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Parts to the context G = V rho_k(K)^T and the mixing matrix W_r G + b_r, all in float32.

    Launch: (ceil(d_k / COLUMNS), images) programs. Reads the parts; writes G, the log-sum-exp of
    each key channel (under scaling its sum) and the mixing matrix, d_k (d_v + 1 + d). With heads,
    those entries of G are zero whose key and value belong to different ones.
    """
    image = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < KEY_CHANNELS
    row = tl.arange(0, VALUE_ROWS)
    entries = row[:, None] * KEY_CHANNELS + column[None, :]
    within = (row < VALUE_CHANNELS)[:, None] & known[None, :]
    contexts += image.to(tl.int64) * parts * (VALUE_CHANNELS * KEY_CHANNELS)
    maxima += image * parts * KEY_CHANNELS
    totals += image * parts * KEY_CHANNELS

    highest = tl.zeros([COLUMNS], tl.float32)
    if SOFTMAX:
        highest = tl.full([COLUMNS], float('-inf'), tl.float32)
        for start in range(0, parts, PARTS):
            part = start + tl.arange(0, PARTS)
            mask = (part < parts)[:, None] & known[None, :]
            places = part[:, None] * KEY_CHANNELS + column[None, :]
            maximum = tl.load(maxima + places, mask=mask, other=float('-inf'))
            highest = tl.maximum(highest, tl.max(maximum, 0))
        highest = tl.where(known, highest, 0.0)
    total = tl.zeros([COLUMNS], tl.float32)
    gathered = tl.zeros([VALUE_ROWS, COLUMNS], tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        mask = (part < parts)[:, None] & known[None, :]
        places = part[:, None] * KEY_CHANNELS + column[None, :]
        of_parts = tl.load(
            contexts
            + part.to(tl.int64)[:, None, None] * (VALUE_CHANNELS * KEY_CHANNELS)
            + entries[None, :, :],
            mask=(part < parts)[:, None, None] & within[None, :, :],
            other=0,
        )
        sum_of_parts = tl.load(totals + places, mask=mask, other=0)
        if SOFTMAX:
            maximum = tl.load(maxima + places, mask=mask, other=float('-inf'))
            shrink = tl.exp(maximum - highest[None, :])
            of_parts *= shrink[:, None, :]
            sum_of_parts *= shrink
        total += tl.sum(sum_of_parts, 0)
        gathered += tl.sum(of_parts, 0)

    if SOFTMAX:
        total = tl.where(known, total, 1.0)
        gathered = gathered / total[None, :]
        sum_of_map = tl.full([COLUMNS], 1.0, tl.float32)
        tl.store(sums + image * KEY_CHANNELS + column, highest + tl.log(total), mask=known)
    else:
        gathered *= scale
        sum_of_map = total * scale
        tl.store(sums + image * KEY_CHANNELS + column, sum_of_map, mask=known)
    if value_bias is not None:
        bias = tl.load(value_bias + row, mask=row < VALUE_CHANNELS, other=0).to(tl.float32)
        gathered += bias[:, None] * sum_of_map[None, :]
    if HEADS > 1:
        of_row = row // (VALUE_CHANNELS // HEADS)
        of_column = column // (KEY_CHANNELS // HEADS)
        gathered = tl.where(of_row[:, None] == of_column[None, :], gathered, 0.0)
    tl.store(context + image * VALUE_CHANNELS * KEY_CHANNELS + entries, gathered, mask=within)

    mixing += image * CHANNELS * KEY_CHANNELS
    for first in range(0, CHANNELS, CHUNK):
        channel = first + tl.arange(0, CHUNK)
        weight = load_matrix(reprojection, channel, row, CHANNELS, VALUE_CHANNELS)
        product = tl.zeros([CHUNK, COLUMNS], tl.float32)
        product = dot(weight, gathered, product, tl.float32, 'ieee')
        if SOFTMAX:
            if reprojection_bias is not None:
                out_bias = tl.load(reprojection_bias + channel, mask=channel < CHANNELS, other=0)
                product += out_bias.to(tl.float32)[:, None] / HEADS
        tl.store(
            mixing + channel[:, None] * KEY_CHANNELS + column[None, :],
            product,
            mask=(channel < CHANNELS)[:, None] & known[None, :],
        )


@triton.jit
def write(
    x,
    queries,
    query_bias,
    mixing,
    reprojection_bias,
    y,
    positions,
    batch_stride,
    channel_stride,
    position_stride,
    y_batch_stride,
    y_channel_stride,
    y_position_stride,
    CHANNELS: tl.constexpr,
    KEY_CHANNELS: tl.constexpr,
    HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    KEYS: tl.constexpr,
    KEYS_PADDED: tl.constexpr,
    SOFTMAX: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Y = X + M rho_q(W_q X + b_q), M the mixing matrix.

    Launch: (ceil(n / TILE), images) programs. Reads X, n d, the second time in each program from
    cache; writes Y, n d.
    """
    image = tl.program_id(1)
    x += image.to(tl.int64) * batch_stride
    y += image.to(tl.int64) * y_batch_stride
    mixing += image * CHANNELS * KEY_CHANNELS
    position = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = position < positions
    row = key_rows(HEADS, HEADS_PADDED, KEYS, KEYS_PADDED)
    query = query_tile(
        x,
        queries,
        query_bias,
        row,
        position,
        inside,
        channel_stride,
        position_stride,
        CHANNELS,
        KEY_CHANNELS,
        HEADS_PADDED,
        KEYS_PADDED,
        SOFTMAX,
        DTYPE,
        PRECISION,
        TILE,
        CHUNK,
    )
    for first in range(0, CHANNELS, CHUNK):
        channel = first + tl.arange(0, CHUNK)
        tokens = load_tile(x, channel, position, inside, channel_stride, position_stride, CHANNELS)
        out = tokens.to(tl.float32)
        weight = load_matrix(mixing, channel, row, CHANNELS, KEY_CHANNELS)
        out = dot(weight, query, out, DTYPE, PRECISION)
        if not SOFTMAX:
            if reprojection_bias is not None:
                bias = tl.load(reprojection_bias + channel, mask=channel < CHANNELS, other=0)
                out += bias.to(tl.float32)[:, None]
        places = channel[:, None] * y_channel_stride
        places += position[None, :] * y_position_stride
        mask = (channel < CHANNELS)[:, None] & inside[None, :]
        tl.store(y + places, out.to(y.dtype.element_ty), mask=mask)
