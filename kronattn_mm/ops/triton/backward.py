"""Backward pass of the efficient-attention block in two launches.

Paper: the block of :mod:`.forward`; the paper gives no gradients. With M the mixing matrix,
P = rho_k(K), G the context and dY the gradient of the output, for one head:

    dM = dY rho_q(Q)^T                              query side: the first kernel
    dQ = rho_q'(M^T dY),  dW_q = dQ X^T
    dG = W_r^T dM,  dA = W_v^T dG                   small matrices, in torch, between the kernels
    dK = P * (dA^T X - diag(A^T dA))                key side: the second kernel
    dW_k = dK X^T,  A = X P^T,  dW_v = dG A^T
    dX = dY + W_q^T dQ + dA P + W_k^T dK

diag(A^T dA) is the sum over positions that a softmax needs in its gradient; it equals the column
sums of (W_v A) * dG, small matrices as well, so there is no pass over the map for it. Under scaling
P = K / n and dK = (dA^T X + b_v^T dG) / n.

Neither kernel keeps a map: queries, keys and their gradients are formed anew for each tile. Sums
over positions are written for each part and added up afterwards, in the same order in each run: no
atomics. A program accumulates only ``OWN`` channels of the gradients of weights, so that they fit
its registers; programs of other channels read the same tiles at the same time, from cache. For the
same reason loops over tiles leave addresses and loads of weights where they are (``disable_licm``).

Cost, multiply-accumulates, for C = d / OWN: first kernel n d d_k (2 C + 2), second
n d d_k (4 C + 5).
"""

# ruff: noqa: ANN001, ANN201, ANN202  (a launch gives the arguments of a kernel their types)

import triton
import triton.language as tl

from .tiles import dot, key_rows, load_matrix, load_tile, query_tile, softmax_over_channels_backward

__all__ = ['key_side', 'query_side']


@triton.jit
def query_side(
    x,
    dy,
    queries,
    query_bias,
    mixing,
    d_mixing,
    d_queries,
    d_query_bias,
    d_out_bias,
    positions,
    part_positions,
    batch_stride,
    channel_stride,
    position_stride,
    dy_batch_stride,
    dy_channel_stride,
    dy_position_stride,
    CHANNELS: tl.constexpr,
    KEY_CHANNELS: tl.constexpr,
    HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    KEYS: tl.constexpr,
    KEYS_PADDED: tl.constexpr,
    SOFTMAX: tl.constexpr,
    DTYPE: tl.constexpr,
    GRAD_DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    OWN: tl.constexpr,
):
    """One part's dM = dY rho_q(Q)^T and dW_q = dQ X^T (stored as X dQ^T), db_q and db_r.

    Launch: (d / OWN, S, images) programs. Reads X and dY, 2 n d; writes S (2 d d_k + d_k + d)
    float32.
    """
    own, part, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    x += image.to(tl.int64) * batch_stride
    dy += image.to(tl.int64) * dy_batch_stride
    mixing += image * CHANNELS * KEY_CHANNELS
    row = key_rows(HEADS, HEADS_PADDED, KEYS, KEYS_PADDED)
    ROWS: tl.constexpr = HEADS_PADDED * KEYS_PADDED
    own_channel = own * OWN + tl.arange(0, OWN)
    of_mixing = tl.zeros([OWN, ROWS], tl.float32)
    of_queries = tl.zeros([OWN, ROWS], tl.float32)
    of_query_bias = tl.zeros([ROWS], tl.float32)
    of_out_bias = tl.zeros([OWN], tl.float32)
    last = tl.minimum((part + 1) * part_positions, positions)
    for start in tl.range(part * part_positions, last, TILE, disable_licm=True):
        position = start + tl.arange(0, TILE)
        inside = position < last
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
        d_query = _d_query_tile(
            dy,
            mixing,
            query,
            row,
            position,
            inside,
            dy_channel_stride,
            dy_position_stride,
            CHANNELS,
            KEY_CHANNELS,
            HEADS_PADDED,
            KEYS_PADDED,
            SOFTMAX,
            GRAD_DTYPE,
            PRECISION,
            TILE,
            CHUNK,
        )
        of_query_bias += tl.sum(d_query, 1)
        gradient = load_tile(
            dy, own_channel, position, inside, dy_channel_stride, dy_position_stride, CHANNELS
        )
        of_out_bias += tl.sum(gradient.to(tl.float32), 1)
        of_mixing = dot(gradient, tl.trans(query), of_mixing, GRAD_DTYPE, PRECISION)
        tokens = load_tile(
            x, own_channel, position, inside, channel_stride, position_stride, CHANNELS
        )
        of_queries = dot(tokens, tl.trans(d_query), of_queries, GRAD_DTYPE, PRECISION)

    out = image * tl.num_programs(1) + part
    channels = own_channel < CHANNELS
    places = own_channel[:, None] * KEY_CHANNELS + row[None, :]
    places += out.to(tl.int64) * (CHANNELS * KEY_CHANNELS)
    mask = channels[:, None] & (row >= 0)[None, :]
    tl.store(d_mixing + places, of_mixing, mask=mask)
    tl.store(d_queries + places, of_queries, mask=mask)
    tl.store(d_out_bias + out * CHANNELS + own_channel, of_out_bias, mask=channels)
    # each program of a part has it; one writes
    tl.store(d_query_bias + out * KEY_CHANNELS + row, of_query_bias, mask=(row >= 0) & (own == 0))


@triton.jit
def key_side(
    x,
    dy,
    queries,
    query_bias,
    keys,
    key_bias,
    mixing,
    d_gathered,
    log_sums,
    offsets,
    dx,
    d_keys,
    gathered,
    d_key_bias,
    positions,
    part_positions,
    scale,
    batch_stride,
    channel_stride,
    position_stride,
    dy_batch_stride,
    dy_channel_stride,
    dy_position_stride,
    dx_batch_stride,
    dx_channel_stride,
    dx_position_stride,
    CHANNELS: tl.constexpr,
    KEY_CHANNELS: tl.constexpr,
    HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    KEYS: tl.constexpr,
    KEYS_PADDED: tl.constexpr,
    SOFTMAX: tl.constexpr,
    DTYPE: tl.constexpr,
    GRAD_DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    OWN: tl.constexpr,
):
    """dX, and one part's dW_k (stored as X dK^T), A = X P^T and db_k.

    Launch: (d / OWN, S, images) programs. ``d_gathered`` is dA; ``offsets`` what is added to
    dA^T X. Reads X and dY, 2 n d; writes dX, n d, and S (2 d d_k + d_k) float32.
    """
    own, part, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    x += image.to(tl.int64) * batch_stride
    dy += image.to(tl.int64) * dy_batch_stride
    dx += image.to(tl.int64) * dx_batch_stride
    mixing += image * CHANNELS * KEY_CHANNELS
    d_gathered += image * CHANNELS * KEY_CHANNELS
    row = key_rows(HEADS, HEADS_PADDED, KEYS, KEYS_PADDED)
    ROWS: tl.constexpr = HEADS_PADDED * KEYS_PADDED
    known = row >= 0
    offset = tl.load(offsets + image * KEY_CHANNELS + row, mask=known, other=0)[:, None]
    own_channel = own * OWN + tl.arange(0, OWN)
    of_keys = tl.zeros([OWN, ROWS], tl.float32)
    inputs_by_key = tl.zeros([OWN, ROWS], tl.float32)
    of_key_bias = tl.zeros([ROWS], tl.float32)
    last = tl.minimum((part + 1) * part_positions, positions)
    for start in tl.range(part * part_positions, last, TILE, disable_licm=True):
        position = start + tl.arange(0, TILE)
        inside = position < last
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
        d_query = _d_query_tile(
            dy,
            mixing,
            query,
            row,
            position,
            inside,
            dy_channel_stride,
            dy_position_stride,
            CHANNELS,
            KEY_CHANNELS,
            HEADS_PADDED,
            KEYS_PADDED,
            SOFTMAX,
            GRAD_DTYPE,
            PRECISION,
            TILE,
            CHUNK,
        )
        key = tl.zeros([ROWS, TILE], tl.float32)
        d_key = tl.zeros([ROWS, TILE], tl.float32)
        for first in range(0, CHANNELS, CHUNK):
            channel = first + tl.arange(0, CHUNK)
            tokens = load_tile(
                x, channel, position, inside, channel_stride, position_stride, CHANNELS
            )
            weight = load_matrix(keys, row, channel, KEY_CHANNELS, CHANNELS)
            key = dot(weight, tokens, key, DTYPE, PRECISION)
            weight = load_matrix(d_gathered, channel, row, CHANNELS, KEY_CHANNELS)
            d_key = dot(tl.trans(weight), tokens, d_key, GRAD_DTYPE, PRECISION)
        if SOFTMAX:
            log_sum = tl.load(log_sums + image * KEY_CHANNELS + row, mask=known, other=0)
            key = tl.exp(key - log_sum[:, None])
            d_key = key * (d_key + offset)
        else:
            if key_bias is not None:
                key += tl.load(key_bias + row, mask=known, other=0).to(tl.float32)[:, None]
            key *= scale
            d_key = (d_key + offset) * scale
        key = tl.where(inside[None, :], key, 0.0)
        d_key = tl.where(inside[None, :], d_key, 0.0)
        of_key_bias += tl.sum(d_key, 1)

        gradient = load_tile(
            dy, own_channel, position, inside, dy_channel_stride, dy_position_stride, CHANNELS
        )
        out = gradient.to(tl.float32)
        weight = load_matrix(queries, row, own_channel, KEY_CHANNELS, CHANNELS)
        out = dot(tl.trans(weight), d_query, out, GRAD_DTYPE, PRECISION)
        weight = load_matrix(keys, row, own_channel, KEY_CHANNELS, CHANNELS)
        out = dot(tl.trans(weight), d_key, out, GRAD_DTYPE, PRECISION)
        weight = load_matrix(d_gathered, own_channel, row, CHANNELS, KEY_CHANNELS)
        out = dot(weight, key, out, GRAD_DTYPE, PRECISION)
        places = own_channel[:, None] * dx_channel_stride
        places += position[None, :] * dx_position_stride
        mask = (own_channel < CHANNELS)[:, None] & inside[None, :]
        tl.store(dx + places, out.to(dx.dtype.element_ty), mask=mask)

        tokens = load_tile(
            x, own_channel, position, inside, channel_stride, position_stride, CHANNELS
        )
        of_keys = dot(tokens, tl.trans(d_key), of_keys, GRAD_DTYPE, PRECISION)
        inputs_by_key = dot(tokens, tl.trans(key), inputs_by_key, GRAD_DTYPE, PRECISION)

    part_of_image = image * tl.num_programs(1) + part
    places = own_channel[:, None] * KEY_CHANNELS + row[None, :]
    places += part_of_image.to(tl.int64) * (CHANNELS * KEY_CHANNELS)
    mask = (own_channel < CHANNELS)[:, None] & known[None, :]
    tl.store(d_keys + places, of_keys, mask=mask)
    tl.store(gathered + places, inputs_by_key, mask=mask)
    tl.store(d_key_bias + part_of_image * KEY_CHANNELS + row, of_key_bias, mask=known & (own == 0))


@triton.jit
def _d_query_tile(
    dy,
    mixing,
    query,
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
    """dQ = rho_q'(M^T dY), the gradient of the queries before their normalisation."""
    gradient = tl.zeros([HEADS_PADDED * KEYS_PADDED, TILE], tl.float32)
    for first in range(0, CHANNELS, CHUNK):
        channel = first + tl.arange(0, CHUNK)
        of_out = load_tile(dy, channel, position, inside, channel_stride, position_stride, CHANNELS)
        weight = load_matrix(mixing, channel, row, CHANNELS, KEY_CHANNELS)
        gradient = dot(tl.trans(weight), of_out, gradient, DTYPE, PRECISION)
    if SOFTMAX:
        gradient = softmax_over_channels_backward(query, gradient, HEADS_PADDED, KEYS_PADDED, TILE)
    return gradient
