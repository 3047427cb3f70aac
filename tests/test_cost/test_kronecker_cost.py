"""The Kronecker paper's accounting: its figures, hand-made sums, and the layers themselves."""

import pytest
import torch

from kronattn_mm.cost import executed_cost, layer_cost, paper_cost
from kronattn_mm.layers import KroneckerAttention2d, KroneckerAttention3d, UnfoldedAttention2d

# Batch 8, 8 channels, two products: millions of multiply-accumulates and of coefficient bytes.
FIGURES = {
    56: dict(macc=(1258.8, 44.96, 1.606), memory=(314.7, 11.24, 0.401)),
    28: dict(macc=(78.68, 5.620, 0.401), memory=(19.67, 1.405, 0.100)),
    14: dict(macc=(4.917, 0.702, 0.100), memory=(1.229, 0.176, 0.025)),
}


def three(side: int, **more):
    """Regular attention, KAO_KV and KAO_QKV on a square map."""
    return (
        paper_cost('kan_regular', positions=side**2, in_channels=8, **more),
        paper_cost('kao_kv', positions=side**2, averages=2 * side, in_channels=8, **more),
        paper_cost('kao_qkv', averages=2 * side, in_channels=8, **more),
    )


@pytest.mark.parametrize('side', FIGURES)
def test_figures_of_table_2(side: int):
    for index, cost in enumerate(three(side)):
        for quantity, values in FIGURES[side].items():
            value = 8 * getattr(cost, quantity) / 1e6
            assert value == pytest.approx(values[index], rel=1e-3, abs=5e-4), (index, quantity)
        assert cost.params == 0


@pytest.mark.parametrize('side', FIGURES)
def test_ratios_are_half_the_side_and_its_square_over_four(side: int):
    regular, kv, qkv = three(side)
    for quantity in ('macc', 'memory'):
        assert getattr(regular, quantity) / getattr(kv, quantity) == side / 2
        assert getattr(regular, quantity) / getattr(qkv, quantity) == side**2 / 4


def test_saving_of_coefficient_memory_at_56():
    regular, kv, qkv = three(56)
    assert round(100 * (1 - kv.memory / regular.memory), 2) == 96.43
    assert round(100 * (1 - qkv.memory / regular.memory), 2) == 99.87


def test_sums_by_hand():
    # 3 x 5 map, 4 channels; queries and keys of 2, values of 6 channels.
    sizes = dict(in_channels=4, transforms='qkv', key_channels=2, out_channels=6)
    params = (4 + 1) * (2 + 2 + 6)
    kv = paper_cost('kao_kv', positions=15, averages=8, **sizes)
    assert kv.params == params
    assert kv.macc == 15 * 8 * (2 + 6) + 15 * 4 * 2 + 8 * 4 * 2 + 8 * 4 * 6
    assert kv.memory == 4 * 15 * 8
    qkv = paper_cost('kao_qkv', averages=8, **sizes)
    assert qkv.macc == 8 * 8 * (2 + 6) + 8 * 4 * (2 + 2 + 6)
    assert qkv.memory == 4 * 64
    pooled = paper_cost('kan_regular', positions=15, key_positions=6, **sizes)
    assert pooled.macc == 15 * 6 * (2 + 6) + 15 * 4 * 2 + 6 * 4 * (2 + 6)
    assert pooled.params == params
    # The paper's modules transform the values only: (h + w) c^2 more, c^2 weights.
    plain, values = (
        paper_cost('kao_qkv', averages=8, in_channels=4, transforms=transforms)
        for transforms in ('', 'v')
    )
    assert values.macc - plain.macc == 8 * 4**2
    assert values.params == 4**2 + 4


LAYERS = [
    (UnfoldedAttention2d, dict(), (6, 9)),
    (UnfoldedAttention2d, dict(pooling=True, transforms='qkv', key_channels=2), (5, 7)),
    (KroneckerAttention2d, dict(mode='kv', transforms='v'), (6, 9)),
    (KroneckerAttention2d, dict(mode='kv', transforms='qkv', key_channels=3), (1, 9)),
    (
        KroneckerAttention2d,
        dict(mode='qkv', transforms='qkv', coefficient_norm='batch_norm'),
        (6, 9),
    ),
    (KroneckerAttention2d, dict(mode='qkv', transforms='', zero_init=False), (6, 9)),
    (KroneckerAttention2d, dict(mode='kv', transforms='v', residual=False, out_channels=7), (4, 3)),
    (KroneckerAttention3d, dict(mode='kv', transforms='qkv'), (3, 4, 5)),
    (KroneckerAttention3d, dict(mode='qkv', transforms='v'), (3, 4, 5)),
]


@pytest.mark.parametrize('layer_class, arguments, spatial', LAYERS)
def test_formula_agrees_with_what_the_layer_executes(layer_class, arguments, spatial):
    layer = layer_class(in_channels=4, **arguments)
    shape = (2, 4, *spatial)
    paper, run = layer_cost(layer, shape), executed_cost(layer, shape)
    assert paper.params == sum(item.numel() for item in layer.parameters()) == run.params
    assert paper.macc == run.macc
    # The coefficient matrix is among what is allocated, before and after the softmax.
    assert run.allocated >= 2 * paper.memory


def test_coefficients_in_three_dimensions():
    layer = KroneckerAttention3d(in_channels=4, mode='kv')
    assert layer_cost(layer, torch.Size((1, 4, 3, 4, 5))).memory == 4 * 60 * 12


@pytest.mark.parametrize(
    'name, sizes, message',
    [
        (
            'kao_kv',
            dict(positions=0, averages=4, in_channels=8),
            'queries must be a positive integer',
        ),
        ('kao_qkv', dict(averages=True, in_channels=8), 'positive integer, got True'),
        ('kao_qkv', dict(averages=4, in_channels=8, transforms='k'), "'', 'v', 'qkv', got 'k'"),
        ('kan_regular', dict(positions=4, in_channels=8, key_positions=-1), 'keys must be'),
    ],
)
def test_bad_sizes(name, sizes, message):
    with pytest.raises(ValueError, match=message):
        paper_cost(name, **sizes)
