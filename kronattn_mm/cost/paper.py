"""The papers' own accounting of parameters, multiply-accumulates and memory.

Paper: "Efficient Attention" (arXiv 1812.01243), Table 1, section 3.5 and Table 2. For one image
with n positions and d channels, d_k and d_v channels of keys and values, with reprojection:

=================  ======================================  =====================================
                   efficient attention                     non-local (dot-product attention)
=================  ======================================  =====================================
memory (floats)    n (2d + 2 d_k + 2 d_v) + d_k d_v        n (2d + 2 d_k + 2 d_v) + n^2
multiply-accum.    n d (2 d_k + 2 d_v) + 2 n d_k d_v       n d (2 d_k + 2 d_v) + n^2 (d_k + d_v)
=================  ======================================  =====================================

A float has four bytes. Memory counts what is computed (queries, keys, values, similarities or
context, attended values, their reprojection, the sum with the input), each once, and not the
input. Softmax, biases and the residual addition cost nothing. Without reprojection (Table 1, which
has d_v = d) one tensor of n d floats and one product fewer.

These forms give all 36 cells of Table 2 to the digits printed. Table 1's row "Computation (MACC)"
is twice as much and d n more; the paper's prose, its Figure 2 and Table 2 count as is done here.

Extensions that the paper does not have: parameters (weights and biases of the projections);
``num_heads``, where a head has its own share of the channels, so that the context shrinks to
d_k d_v / heads and the similarities grow to heads n^2; ``key_positions``, where keys and values
are pooled and the pooled maps are counted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FLOAT_BYTES = 4


@dataclass(frozen=True)
class PaperCost:
    """Cost of one attention module, or of several, for one image.

    Attributes:
        params: Number of parameters.
        macc: Multiply-accumulates of one forward pass.
        memory: Bytes of the tensors that a forward pass computes.
    """

    params: int = 0
    macc: int = 0
    memory: int = 0

    def __add__(self, other: 'PaperCost') -> 'PaperCost':
        return PaperCost(
            self.params + other.params, self.macc + other.macc, self.memory + other.memory
        )


METHODS: dict[str, Callable[..., PaperCost]] = {}


def method(function: Callable[..., PaperCost]) -> Callable[..., PaperCost]:
    """Make a function from sizes to PaperCost known to :func:`paper_cost` by its name."""
    METHODS[function.__name__] = function
    return function


def paper_cost(name: str, **sizes: Any) -> PaperCost:
    """Return the cost of a method in its paper's accounting.

    Args:
        name (str): One of ``METHODS``: ``'efficient_attention'`` or ``'non_local'`` of this
            module, ``'kan_regular'``, ``'kao_kv'`` or ``'kao_qkv'`` of :mod:`.kronecker`,
            ``'latent_gnn'`` or ``'cgnl'`` of :mod:`.competing`,
            ``'shift_balance'``, ``'scaled_attention'``, ``'dynamic_conv'`` or ``'cond_conv'`` of
            :mod:`.shift_balance`.
        **sizes: The arguments of the function of that name, which checks them.

    Raises:
        TypeError: If a size is missing or is not one of the method's.
        ValueError: If the method is unknown or a size is out of range.
    """
    if name not in METHODS:
        raise ValueError(f'unknown method {name!r}; there are {", ".join(METHODS)}')
    return METHODS[name](**sizes)


@method
def efficient_attention(
    positions: int,
    in_channels: int,
    key_channels: int = 64,
    value_channels: int = 64,
    num_heads: int = 1,
    reprojection: bool = True,
) -> PaperCost:
    """Cost of an efficient attention module.

    Args:
        positions (int): Positions n of the feature map (height times width), of one image.
        in_channels (int): Channels d of the feature map.
        key_channels (int): Channels d_k of queries and keys. Defaults to 64.
        value_channels (int): Channels d_v of the values. Defaults to 64.
        num_heads (int): Heads. Defaults to 1, the paper's; more is an extension.
        reprojection (bool): Project the attended values back to ``in_channels``. Defaults to True.

    Raises:
        ValueError: If a size is not positive, heads do not divide the channels, or there is no
            reprojection although ``value_channels`` differs from ``in_channels``.
    """
    block = _block(positions, in_channels, key_channels, value_channels, num_heads, reprojection)
    context = key_channels * value_channels // num_heads
    return block + PaperCost(macc=2 * positions * context, memory=FLOAT_BYTES * context)


@method
def non_local(
    positions: int,
    in_channels: int,
    key_channels: int = 64,
    value_channels: int = 64,
    num_heads: int = 1,
    reprojection: bool = True,
    key_positions: int | None = None,
) -> PaperCost:
    """Cost of a non-local module, that is, of dot-product attention.

    Args:
        positions (int): Positions n of the feature map (height times width), of one image.
        in_channels (int): Channels d of the feature map.
        key_channels (int): Channels d_k of queries and keys. Defaults to 64.
        value_channels (int): Channels d_v of the values. Defaults to 64.
        num_heads (int): Heads. Defaults to 1, the paper's; more is an extension.
        reprojection (bool): Project the attended values back to ``in_channels``. Defaults to True.
        key_positions (int, optional): Positions of keys and values after pooling. Defaults to
            None, no pooling, which is the paper's; pooling is an extension.

    Raises:
        ValueError: As for :func:`efficient_attention`.
    """
    block = _block(positions, in_channels, key_channels, value_channels, num_heads, reprojection)
    pooled = 0
    if key_positions is None:
        key_positions = positions
    else:
        check_positive(key_positions=key_positions)
        pooled = key_positions * (key_channels + value_channels)
    similarities = num_heads * positions * key_positions
    return block + PaperCost(
        macc=positions * key_positions * (key_channels + value_channels),
        memory=FLOAT_BYTES * (similarities + pooled),
    )


def _block(
    positions: int,
    in_channels: int,
    key_channels: int,
    value_channels: int,
    num_heads: int,
    reprojection: bool,
) -> PaperCost:
    """Projections, attended values and residual, which both modules have."""
    check_positive(
        positions=positions,
        in_channels=in_channels,
        key_channels=key_channels,
        value_channels=value_channels,
        num_heads=num_heads,
    )
    if key_channels % num_heads or value_channels % num_heads:
        raise ValueError(
            f'num_heads={num_heads} does not divide key_channels={key_channels} and '
            f'value_channels={value_channels}'
        )
    if not reprojection and value_channels != in_channels:
        raise ValueError(
            'without reprojection the values have the channels of the input, got '
            f'value_channels={value_channels} and in_channels={in_channels}'
        )
    projected = 2 * key_channels + value_channels
    weights = in_channels * projected
    biases = projected
    maps = projected + value_channels + in_channels  # ..., attended values, sum with the input
    if reprojection:
        weights += in_channels * value_channels
        biases += in_channels
        maps += in_channels
    return PaperCost(weights + biases, positions * weights, FLOAT_BYTES * positions * maps)


def check_positive(**sizes: int) -> None:
    """Raise ValueError unless all sizes are positive integers."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f'{name} must be a positive integer, got {value!r}')
