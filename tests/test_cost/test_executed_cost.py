"""What is counted while a layer runs, against formulae and against sums worked out by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kronattn_mm.cost import executed_cost, layer_cost
from kronattn_mm.cost.executed import _on_one_image
from kronattn_mm.layers import (
    EfficientAttention1d,
    EfficientAttention2d,
    EfficientAttention3d,
    RegularAttention2d,
)

SIZES = [  # in_channels, key_channels, value_channels, num_heads, spatial
    (64, 64, 64, 1, (7, 9)),
    (32, 16, 8, 4, (10, 10)),
    (48, 8, 24, 2, (1, 1)),
    (16, 32, 64, 8, (3, 50)),
]


@pytest.mark.parametrize(('d', 'dk', 'dv', 'heads', 'spatial'), SIZES)
@pytest.mark.parametrize('normalization', ['softmax', 'scaling'])
@pytest.mark.parametrize('layer_type', [EfficientAttention2d, RegularAttention2d])
def test_counted_multiply_accumulates_are_the_formula(
    layer_type, normalization, d, dk, dv, heads, spatial
):
    layer = layer_type(d, dk, dv, heads, normalization)
    paper, executed = layer_cost(layer, (1, d, *spatial)), executed_cost(layer, (1, d, *spatial))
    assert executed.macc == paper.macc
    assert executed.params == paper.params == sum(p.numel() for p in layer.parameters())
    assert executed.complete


def test_square_case_is_4nck_plus_2nkk():
    n, c, k = 20 * 30, 256, 64
    assert (
        executed_cost(EfficientAttention2d(c, k, k), (1, c, 20, 30)).macc
        == 4 * n * c * k + 2 * n * k * k
    )


def test_sequences_and_volumes():
    for layer, shape in (
        (EfficientAttention1d(16, 8, 8), (1, 16, 60)),
        (EfficientAttention3d(16, 8, 8), (1, 16, 3, 4, 5)),
    ):
        assert executed_cost(layer, shape).macc == layer_cost(layer, shape).macc


@pytest.mark.parametrize(
    'layer',
    [
        EfficientAttention2d(32, 16, 8, 2),
        RegularAttention2d(32),
        RegularAttention2d(32, pooling=True),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
    ],
    ids=lambda layer: type(layer).__name__,
)
@pytest.mark.parametrize('with_cp', [False, True])
def test_without_data_as_with_data(layer, with_cp):
    if isinstance(layer, nn.ReLU):
        layer = nn.Sequential(nn.Conv2d(32, 32, 1), layer)
    fake, real = (_on_one_image(layer, (1, 32, 9, 7), with_cp, fake=fake) for fake in (True, False))
    assert (fake.params, fake.macc, fake.allocated, fake.kept) == (
        real.params,
        real.macc,
        real.allocated,
        real.kept,
    )


def test_one_image_whatever_the_batch():
    layer = EfficientAttention2d(32)
    assert executed_cost(layer, (8, 32, 6, 6)) == executed_cost(layer, (1, 32, 6, 6))


def test_a_large_map_costs_nothing_to_count():
    # Non-local attention at fpn1 has similarities of 20 GB.
    cost = executed_cost(RegularAttention2d(256), (1, 256, 224, 320))
    assert cost.macc == 662_364_487_680
    assert cost.kept > 20e9


class _ByHand(nn.Module):
    """Views, an addition in place, two products and a tensor that is returned as it came."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 4))

    def forward(self, x):  # (1, 4, 6)
        y = self.weight @ x.flatten(1).view(4, 6)  # made: 5 x 6
        y += 1
        z = y.t().reshape(6, 5)  # a view
        return torch.exp(z @ self.weight)  # made: 6 x 4, twice


def test_bytes_worked_out_by_hand():
    cost = executed_cost(_ByHand(), (1, 4, 6))
    assert cost.macc == 5 * 4 * 6 + 6 * 5 * 4
    assert cost.allocated == 4 * (5 * 6 + 2 * 6 * 4)
    # The second product keeps y, exp keeps its result; weight and input exist anyway.
    assert cost.kept == 4 * (5 * 6 + 6 * 4)


def test_kept_for_backward_by_efficient_attention():
    d, dk, dv, n = 32, 16, 8, 63
    cost = executed_cost(EfficientAttention2d(d, dk, dv), (1, d, 9, 7))
    # Both softmaxes, the values, the context and the attended values, as long as they are
    # computed one after the other; a leaner implementation keeps less.
    assert 0 < cost.kept <= 4 * (n * (2 * dk + 2 * dv) + dk * dv)


def test_recomputed_layer_keeps_nothing():
    layer = EfficientAttention2d(32)
    plain, recomputed = (executed_cost(layer, (1, 32, 9, 7), with_cp) for with_cp in (False, True))
    assert recomputed.kept == 0 < plain.kept
    assert recomputed.macc == plain.macc


class _FusedAttention(nn.Module):
    def forward(self, x):
        tokens = x.flatten(2).transpose(1, 2)[:, None]
        return F.scaled_dot_product_attention(tokens, tokens, tokens)[:, 0].transpose(1, 2)


class _TokenAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x):
        tokens = x.flatten(2).transpose(1, 2)
        return self.attention(tokens, tokens, tokens)[0].transpose(1, 2).view_as(x)


def test_torchs_own_attention_is_counted():
    n, d = 63, 32
    assert executed_cost(_FusedAttention(), (1, d, 9, 7)).macc == 2 * n * n * d
    assert executed_cost(_TokenAttention(), (1, d, 9, 7)).macc == 4 * n * d * d + 2 * n * n * d
    assert torch.backends.mha.get_fastpath_enabled()


def test_the_layer_is_left_as_it_was():
    layer = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)).train()
    layer[1].eval()
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    executed_cost(layer, (1, 8, 4, 4))
    assert layer[0].training and not layer[1].training
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())
    assert all(parameter.grad is None for parameter in layer.parameters())


def test_data_dependent_layer_runs_for_real_and_is_a_lower_bound():
    class Chooses(nn.Conv2d):
        def forward(self, x):
            return super().forward(x) if x.sum().item() == 0 else x

    cost = executed_cost(Chooses(8, 8, 1), (1, 8, 4, 4))
    assert cost.macc == 16 * 8 * 8
    assert not cost.complete


def test_a_shape_that_does_not_fit():
    with pytest.raises(ValueError, match=r'Conv2d cannot run on an input of shape \(1, 3, 4, 4\)'):
        executed_cost(nn.Conv2d(8, 8, 1), (1, 3, 4, 4))


def test_mmcv_layers():
    bricks = pytest.importorskip('mmcv.cnn.bricks')
    n, d, k = 80, 32, 16
    assert executed_cost(bricks.NonLocal2d(d), (1, d, 10, 8)).macc == 4 * n * d * k + 2 * n * n * k
    pooled = bricks.NonLocal2d(d, sub_sample=True)
    assert executed_cost(pooled, (1, d, 10, 8)).macc == layer_cost(pooled, (1, d, 10, 8)).macc
    # ContextBlock: a 1 x 1 mask convolution, its product with the map, two small projections.
    assert executed_cost(
        bricks.ContextBlock(d, 1 / 4), (1, d, 10, 8)
    ).macc == n * d + n * d + 2 * d * (d // 4)
