"""Table 2 of "Kronecker Attention Networks": its operators and regular attention, alone.

Paper: "Kronecker Attention Networks" (arXiv 2007.08442), section 4.2: networks of one attention
operator, batch 8, 8 channels, maps of 56 x 56, 28 x 28 and 14 x 14. The text prints the ratios at
56 x 56; the table itself was not at hand. It was measured with TensorFlow's profiler, on hardware
and with an accounting of memory that are not stated.

All are two batched matrix products and a softmax over the contiguous dimension, without linear
transformations and without batch norm on the coefficients. The regular operator here stores its
coefficients, as the paper's did; the Kronecker operators are the package's own, whose
:func:`dot_product_attention` takes many queries in turns on a CPU. SDPA is torch's
fused attention, what a user would take today for the regular operator; it computes the same
without storing coefficients. KAO_KV can be computed by it as well.
"""

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..cost.kronecker import kan_regular, kao_kv, kao_qkv
from ..cost.paper import PaperCost
from ..ops import axis_averages, dot_product_attention, outer_sum
from .comparison import Comparison, Operator, Printed, positions


def regular_attention(x: Tensor) -> Tensor:
    """Regular attention on ``(N, C, H, W)``, equation 1, with all coefficients in memory."""
    tokens = x.flatten(2)
    coefficients = (tokens.transpose(1, 2) @ tokens).softmax(dim=-1)
    return (tokens @ coefficients.transpose(1, 2)).reshape(x.shape)


def kao_kv_attention(x: Tensor) -> Tensor:
    """KAO_KV on ``(N, C, H, W)``, equation 16."""
    averages = axis_averages(x)
    return dot_product_attention(x.flatten(2), averages, averages).reshape(x.shape)


def kao_qkv_attention(x: Tensor) -> Tensor:
    """KAO_QKV on ``(N, C, H, W)``, equations 17 and 18."""
    averages = axis_averages(x)
    return outer_sum(dot_product_attention(averages, averages, averages), x.shape[2:])


def fused_attention(x: Tensor) -> Tensor:
    """Regular attention by torch's fused kernel."""
    tokens = _rows(x.flatten(2))
    return _fused(tokens, tokens).reshape(x.shape)


def fused_kao_kv_attention(x: Tensor) -> Tensor:
    """KAO_KV by torch's fused kernel: the same with h + w keys."""
    return _fused(_rows(x.flatten(2)), _rows(axis_averages(x))).reshape(x.shape)


def _rows(tokens: Tensor) -> Tensor:
    """Put tokens in rows, and add the one head that the kernel wants."""
    return tokens.transpose(1, 2).contiguous().unsqueeze(1)


def _fused(query: Tensor, key: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, key, scale=1.0).squeeze(1).transpose(1, 2)


def _regular_cost(channels: int, size: Sequence[int]) -> PaperCost:
    return kan_regular(positions=positions(size), in_channels=channels)


def _kv_cost(channels: int, size: Sequence[int]) -> PaperCost:
    return kao_kv(positions=positions(size), averages=sum(size), in_channels=channels)


def _qkv_cost(channels: int, size: Sequence[int]) -> PaperCost:
    return kao_qkv(averages=sum(size), in_channels=channels)


def _operator(
    name: str,
    run: Callable[[Tensor], Tensor],
    cost: Callable[[int, Sequence[int]], PaperCost],
    stores: bool = True,
) -> Operator:
    return Operator(
        name,
        run,
        lambda channels, size: cost(channels, size).macc,
        (lambda channels, size: cost(channels, size).memory) if stores else None,
    )


TABLE_2 = Comparison(
    title='Kronecker Attention Networks, Table 2: one operator alone',
    operators=(
        _operator('regular', regular_attention, _regular_cost),
        _operator('KAO_KV', kao_kv_attention, _kv_cost),
        _operator('KAO_QKV', kao_qkv_attention, _qkv_cost),
        _operator('KAO_KV fused', fused_kao_kv_attention, _kv_cost, stores=False),
        _operator('SDPA', fused_attention, _regular_cost, stores=False),
    ),
    batch=8,
    channels=8,
    sizes=((56, 56), (28, 28), (14, 14)),
    printed={
        ('KAO_KV', (56, 56)): Printed(speedup=31.1, saving=0.9618),
        ('KAO_KV fused', (56, 56)): Printed(speedup=31.1, saving=0.9618),
        ('KAO_QKV', (56, 56)): Printed(speedup=305.8, saving=0.9973),
    },
    notes=(
        'In arithmetic KAO_KV has h/2 and KAO_QKV h^2/4 times less to do on an h x h map: 28 and '
        '784 at 56.',
        'What goes beyond is the traffic of stored coefficients, which fused kernels do not have.',
    ),
)
