"""The accounting of "Kronecker Attention Networks": products and coefficient matrices.

Paper: "Kronecker Attention Networks" (arXiv 2007.08442), sections 2.1, 2.2 and 3.4. For q queries
and k keys and values, of d_k and d_v channels:

    multiply-accumulates (the paper's MAdd)  q k (d_k + d_v)
    memory                                   q k floats, the coefficient matrix E

=============================  ===========================  ==========================
                               q                            k
=============================  ===========================  ==========================
regular                        h w                          h w
regular with 2 x 2 pooling     h w                          ceil(h / 2) ceil(w / 2)
KAO_KV   (equation 16)         h w                          h + w
KAO_QKV  (equation 17)         h + w                        h + w
=============================  ===========================  ==========================

Unlike the accounting in :mod:`.paper`, memory here is that matrix and nothing else, because it is
what the paper's complexities count. A linear transformation adds its weights and biases to the
parameters and its product to the multiply-accumulates; the pooled operator pools before it
transforms. Averages, outer sum, pooling, softmax and batch norm cost nothing; the batch norm of the
coefficients adds its two parameters. In three dimensions h + w becomes d + h + w.
"""

import math
from collections.abc import Sequence

from .paper import FLOAT_BYTES, PaperCost, method


@method
def kan_regular(
    *,
    positions: int,
    in_channels: int,
    transforms: str = '',
    key_channels: int | None = None,
    out_channels: int | None = None,
    coefficient_norm: bool = False,
    key_positions: int | None = None,
) -> PaperCost:
    """Cost of the paper's regular attention operator, pooled or not, for one image.

    Args:
        positions (int): Positions h w of the feature map.
        in_channels (int): Channels c.
        transforms (str): Which of query, key and value are transformed, as the layers have it:
            ``''``, ``'v'`` or ``'qkv'``. Defaults to ``''``.
        key_channels (int, optional): Channels d_k of queries and keys. Defaults to c.
        out_channels (int, optional): Channels d_v of the values. Defaults to c.
        coefficient_norm (bool): Batch norm on the coefficients. Defaults to False.
        key_positions (int, optional): Positions of keys and values after pooling. Defaults to
            None, no pooling.

    Raises:
        ValueError: If a size is not positive or ``transforms`` is unknown.
    """
    keys = positions if key_positions is None else key_positions
    return _operator(
        positions,
        keys,
        (positions, keys, keys),
        in_channels,
        transforms,
        key_channels,
        out_channels,
        coefficient_norm,
    )


@method
def kao_kv(
    *,
    positions: int,
    averages: int,
    in_channels: int,
    transforms: str = '',
    key_channels: int | None = None,
    out_channels: int | None = None,
    coefficient_norm: bool = False,
) -> PaperCost:
    """Cost of KAO_KV for one image.

    Args:
        positions (int): Positions h w of the feature map.
        averages (int): Averages h + w.
        in_channels (int): Channels c.
        transforms (str): As for :func:`kan_regular`, like the arguments after it.

    Raises:
        ValueError: If a size is not positive or ``transforms`` is unknown.
    """
    return _operator(
        positions,
        averages,
        (positions, averages, averages),
        in_channels,
        transforms,
        key_channels,
        out_channels,
        coefficient_norm,
    )


@method
def kao_qkv(
    *,
    averages: int,
    in_channels: int,
    transforms: str = '',
    key_channels: int | None = None,
    out_channels: int | None = None,
    coefficient_norm: bool = False,
) -> PaperCost:
    """Cost of KAO_QKV for one image.

    Args:
        averages (int): Averages h + w.
        in_channels (int): Channels c.
        transforms (str): As for :func:`kan_regular`, like the arguments after it.

    Raises:
        ValueError: If a size is not positive or ``transforms`` is unknown.
    """
    return _operator(
        averages,
        averages,
        (averages, averages, averages),
        in_channels,
        transforms,
        key_channels,
        out_channels,
        coefficient_norm,
    )


def pooled_positions(spatial: Sequence[int]) -> int:
    """Return how many positions 2 x 2 pooling leaves, sizes being rounded up."""
    return math.prod(-(-size // 2) for size in spatial)


def _operator(
    queries: int,
    keys: int,
    transformed: tuple[int, int, int],
    in_channels: int,
    transforms: str,
    key_channels: int | None,
    out_channels: int | None,
    coefficient_norm: bool,
) -> PaperCost:
    """Add up the two products and the transformations, which see ``transformed`` positions."""
    key_channels = in_channels if key_channels is None else key_channels
    out_channels = in_channels if out_channels is None else out_channels
    for name, value in dict(
        queries=queries,
        keys=keys,
        in_channels=in_channels,
        key_channels=key_channels,
        out_channels=out_channels,
    ).items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f'{name} must be a positive integer, got {value!r}')
    if transforms not in ('', 'v', 'qkv'):
        raise ValueError(f"transforms must be one of '', 'v', 'qkv', got {transforms!r}")
    params = 2 if coefficient_norm else 0
    macc = queries * keys * (key_channels + out_channels)
    for letter, positions, channels in zip(
        'qkv', transformed, (key_channels, key_channels, out_channels), strict=True
    ):
        if letter in transforms:
            params += (in_channels + 1) * channels
            macc += positions * in_channels * channels
    return PaperCost(params, macc, FLOAT_BYTES * queries * keys)
