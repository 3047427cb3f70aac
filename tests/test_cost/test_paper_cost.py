"""The paper's accounting against what the paper prints and against sums worked out by hand."""

import itertools

import pytest
import torch
from torch import nn

from kronattn_mm.cost import PaperCost, layer_cost, paper_cost
from kronattn_mm.cost.paper_tables import (
    TABLE_2_LAYERS,
    TABLE_2_PRINTED,
    examples,
    section_3_5_costs,
    table_2,
    table_2_row,
)
from kronattn_mm.cost.quantity import quantity
from kronattn_mm.layers import EfficientAttention1d, EfficientAttention2d, RegularAttention2d

# Efficient attention's bytes and multiply-accumulates, then non-local's; exact, None: not checked.
EXACT = {
    'res3': (41_304_064, 1_211_105_280, None, None),
    'res4': (19_513_344, 596_377_600, None, None),
    'fpn1': (220_217_344, 5_284_823_040, 20_772_290_560, 662_364_487_680),
    'fpn5': (876_544, 20_643_840, 1_173_760, 28_385_280),
    'res3-4+fpn3-5': (78_929_920, 2_241_003_520, None, None),
    'res3-4+fpn1-5': (354_213_888, 8_847_032_320, 22_361_606_400, 712_259_215_360),
}


def test_every_printed_cell_of_table_2():
    cells = [cell for row in table_2() for cell in row]
    assert len(cells) == 36
    assert [cell.what for cell in cells if not cell.matches] == []
    assert [cell.ours for cell in cells] == list(
        itertools.chain.from_iterable(TABLE_2_PRINTED.values())
    )


@pytest.mark.parametrize('row', EXACT)
def test_table_2_to_the_byte(row):
    efficient, regular = table_2_row(row)
    ours = (efficient.memory, efficient.macc, regular.memory, regular.macc)
    assert [value for value, exact in zip(ours, EXACT[row], strict=True) if exact is not None] == [
        exact for exact in EXACT[row] if exact is not None
    ]


def test_parameters_of_the_seven_modules():
    assert table_2_row('res3-4+fpn1-5')[0].params == 1_114_112 + 5_696  # weights and biases


def test_unknown_row_names_the_rows():
    with pytest.raises(ValueError, match=r"no row 'res5'; there are res3, res4, fpn1"):
        table_2_row('res5')


def test_every_example_of_the_text():
    checks = examples()
    assert len(checks) == 16
    assert [check.what for check in checks if not check.matches] == []


def test_examples_exactly():
    efficient, regular = section_3_5_costs(48, 135, 240, channels=32)
    positions = 48 * 135 * 240
    assert efficient.memory == 4 * (4 * 32 * positions + 32 * 32 // 2)
    assert regular.memory == 4 * (4 * 32 * positions + positions**2)


@pytest.mark.parametrize(('n', 'd'), [(1, 2), (49, 64), (4480, 1024)])
def test_table_1_memory_and_half_its_macc(n, d):
    sizes = dict(
        positions=n, in_channels=d, key_channels=d // 2, value_channels=d, reprojection=False
    )
    efficient = paper_cost('efficient_attention', **sizes)
    regular = paper_cost('non_local', **sizes)
    assert efficient.memory == 4 * (4 * d * n + d * d // 2)
    assert regular.memory == 4 * (4 * d * n + n * n)
    # Table 1's row is twice the multiply-accumulates and d n more.
    assert 2 * efficient.macc + d * n == (6 * d * d + d) * n
    assert 2 * regular.macc + d * n == (4 * d * d + d) * n + 3 * d * n * n


def test_heads_share_the_channels():
    one, four = (
        paper_cost(
            'efficient_attention',
            positions=100,
            in_channels=32,
            key_channels=16,
            value_channels=8,
            num_heads=heads,
        )
        for heads in (1, 4)
    )
    assert one.macc - four.macc == 2 * 100 * 16 * 8 * 3 // 4
    assert one.memory - four.memory == 4 * 16 * 8 * 3 // 4
    one, four = (
        paper_cost(
            'non_local',
            positions=100,
            in_channels=32,
            key_channels=16,
            value_channels=8,
            num_heads=heads,
        )
        for heads in (1, 4)
    )
    assert one.macc == four.macc
    assert four.memory - one.memory == 4 * 3 * 100 * 100


def test_costs_add():
    assert PaperCost(1, 2, 3) + PaperCost(10, 20, 30) == PaperCost(11, 22, 33)


@pytest.mark.parametrize(
    ('sizes', 'message'),
    [
        (dict(positions=0), r'positions must be a positive integer, got 0'),
        (dict(in_channels=2.5), r'in_channels must be a positive integer, got 2\.5'),
        (dict(num_heads=3), r'num_heads=3 does not divide key_channels=64 and value_channels=64'),
        (dict(reprojection=False), r'value_channels=64 and in_channels=32'),
    ],
)
@pytest.mark.parametrize('method', ['efficient_attention', 'non_local'])
def test_bad_sizes_are_named(method, sizes, message):
    with pytest.raises(ValueError, match=message):
        paper_cost(method, **{'positions': 10, 'in_channels': 32, **sizes})


def test_unknown_method_names_the_methods():
    with pytest.raises(ValueError, match=r"'linear'; there are efficient_attention, non_local"):
        paper_cost('linear', positions=10, in_channels=32)
    with pytest.raises(TypeError, match='reprojektion'):
        paper_cost('non_local', positions=10, in_channels=32, reprojektion=True)


def test_costs_of_built_layers():
    expected = paper_cost(
        'efficient_attention',
        positions=35,
        in_channels=32,
        key_channels=16,
        value_channels=8,
        num_heads=2,
    )
    arguments = dict(in_channels=32, key_channels=16, value_channels=8, num_heads=2)
    assert layer_cost(EfficientAttention2d(**arguments), (1, 32, 5, 7)) == expected
    assert layer_cost(EfficientAttention2d(**arguments), (8, 32, 5, 7)) == expected
    assert layer_cost(EfficientAttention1d(**arguments), (1, 32, 35)) == expected
    arguments.pop('num_heads')
    assert layer_cost(RegularAttention2d(**arguments), (1, 32, 5, 7)) == paper_cost(
        'non_local', positions=35, **arguments
    )
    assert layer_cost(RegularAttention2d(**arguments, pooling=True), (1, 32, 5, 7)) == paper_cost(
        'non_local', positions=35, key_positions=3 * 4, **arguments
    )


def test_no_formula_for_other_layers():
    class Wider(EfficientAttention2d):
        pass

    class EfficientAttention2D(nn.Module):
        pass

    assert layer_cost(Wider(32), (1, 32, 5, 7)) is None
    assert layer_cost(EfficientAttention2D(), (1, 32, 5, 7)) is None
    assert layer_cost(nn.Conv2d(32, 32, 1), (1, 32, 5, 7)) is None


def test_mmcv_non_local():
    bricks = pytest.importorskip('mmcv.cnn.bricks')
    half = dict(in_channels=32, key_channels=16, value_channels=16)
    assert layer_cost(bricks.NonLocal2d(32), (1, 32, 5, 7)) == paper_cost(
        'non_local', positions=35, **half
    )
    assert layer_cost(bricks.NonLocal2d(32, sub_sample=True), (1, 32, 5, 7)) == paper_cost(
        'non_local', positions=35, key_positions=2 * 3, **half
    )
    assert layer_cost(bricks.NonLocal2d(32, mode='gaussian'), (1, 32, 5, 7)) is None
    assert layer_cost(bricks.ContextBlock(32, 1 / 4), (1, 32, 5, 7)) is None


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        (0, '0'),
        (7, '7'),
        (999, '999'),
        (1000, '1.00 K'),
        (9_994, '9.99 K'),
        (9_996, '10.0 K'),
        (99_960, '100 K'),
        (876_544, '877 K'),
        (999_499, '999 K'),
        (999_600, '1.00 M'),
        (41_304_064, '41.3 M'),
        (1_650_341_183_488, '1.65 T'),
    ],
)
def test_quantities_as_the_paper_prints_them(value, text):
    assert quantity(value) == text


def test_formulae_follow_the_layers_through_table_2():
    for name, (channels, height, width) in TABLE_2_LAYERS.items():
        with torch.device('meta'):
            layers = EfficientAttention2d(channels), RegularAttention2d(channels)
        assert tuple(
            layer_cost(layer, (1, channels, height, width)) for layer in layers
        ) == table_2_row(name)
