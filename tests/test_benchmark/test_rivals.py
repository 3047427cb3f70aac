"""Any layer of the package against what a user would take in its place."""

import pytest
import torch

from kronattn_mm import layers
from kronattn_mm.benchmark import run_contest
from kronattn_mm.benchmark.contest import FLOOR
from kronattn_mm.benchmark.rivals import (
    OURS,
    RIVALS,
    FusedAttention,
    build_layer,
    default_rivals,
    enter_layer,
)
from kronattn_mm.layers import RegularAttention2d

_MAPS = {1: (12,), 2: (5, 6), 3: (2, 3, 4)}


def small(name):
    arguments = {}
    if 'Attention' in name and 'Kronecker' not in name and 'Unfolded' not in name:
        arguments = dict(key_channels=8, value_channels=8)
    layer = build_layer(name, 16, arguments)
    x = torch.randn(2, 16, *_MAPS[getattr(layer, 'spatial_dims', 2)])
    return layer, x


@pytest.mark.parametrize('training', [False, True], ids=['forward', 'training'])
@pytest.mark.parametrize('name', layers.__all__)
def test_every_layer_takes_part(name, training):
    layer, x = small(name)
    rivals = [rival for rival in default_rivals(layer) if rival != 'compiled']
    entry, left_out = enter_layer(layer, x, rivals, training)
    assert not left_out
    figures = run_contest(entry, 1)
    assert list(figures)[0] == OURS and list(figures)[-1] == FLOOR
    assert (figures[OURS].kept is not None) == training
    assert set(rivals) - set(figures) == {'floor'} - set(figures)
    assert all(parameter.grad is None for parameter in layer.parameters())
    assert layer.training == training


def test_layers_do_something():
    """A layer that starts as the identity would be no fair contestant."""
    layer, x = small('EfficientAttention2d')
    assert not torch.equal(layer(x), x)


def test_sdpa_is_the_non_local_block():
    torch.manual_seed(0)
    fused, plain = FusedAttention(2, 16, 8), RegularAttention2d(16, 8, 8, zero_init=False)
    plain.load_state_dict(fused.state_dict())
    x = torch.randn(2, 16, 7, 5)
    torch.testing.assert_close(fused(x), plain(x))


def test_what_would_take_gigabytes_is_left_out():
    layer = build_layer('EfficientAttention2d', 16, dict(key_channels=8, value_channels=8))
    entry, left_out = enter_layer(layer, torch.zeros(1, 16, 200, 200), ['NonLocal', 'SDPA'])
    assert [member.name for member in entry.contestants] == [OURS]
    assert left_out == {'NonLocal': '1.6e+09 similarities', 'SDPA': '1.6e+09 similarities'}


def test_a_width_that_mmcvs_block_cannot_have_leaves_it_out():
    layer = build_layer('EfficientAttention2d', 16, {})  # 64 key channels
    entry, left_out = enter_layer(layer, torch.zeros(1, 16, 4, 4), ['NonLocal', 'SDPA'])
    assert [member.name for member in entry.contestants] == [OURS, 'SDPA']
    assert left_out == {'NonLocal': 'it has a whole fraction of 16 channels inside, not 64'}


def test_the_floor_has_three_times_the_products_in_training():
    layer, x = small('EfficientAttention2d')
    forward, training = (enter_layer(layer, x, ['floor'], kind)[0].needs for kind in (False, True))
    assert forward.macc == 2 * (4 * 30 * 16 * 8 + 2 * 16 * 8 * 8)
    assert training.macc == 3 * forward.macc


@pytest.mark.parametrize(
    'call, message',
    [
        (lambda: build_layer('EficientAttention2d', 8, {}), 'must be one of'),
        (lambda: build_layer('EfficientAttention2d', 8, dict(num_heads=3)), 'num_heads'),
        (lambda: enter_layer(*small('CGNL2d'), ['SDP']), f'among {", ".join(RIVALS)}, got'),
        (lambda: enter_layer(*small('CGNL2d'), ['static']), 'no convolution'),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(ValueError, match=message):
        call()
