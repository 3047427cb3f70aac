"""Kronecker attention against regular attention, a clone of its map, and its own equations.

The first contest is that of the paper's Table 2, its operators alone on 56 x 56 with 8 channels,
batch 8; see :mod:`kronattn_mm.benchmark.kronecker`. The others are the layers, with residual, on a
level of a feature pyramid: 100 x 168 with 256 channels, batch 2.
"""

import torch
from torch import Tensor

from ...layers import KroneckerAttention2d
from .. import kronecker as operators
from ..contest import CLONE, Bar, Contest, Contestant, Entry
from ..rivals import OURS, build_layer, enter_layer, pass_of

_SMALL, _LARGE = (8, 8, 56, 56), (2, 256, 100, 168)


def _map(shape: tuple[int, ...], device: str) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)


def _operators_alone(device: str) -> Entry:
    x = _map(_SMALL, device)
    runs = {
        'regular, materialised': operators.regular_attention,
        'SDPA': operators.fused_attention,
        'KAO_KV': operators.kao_kv_attention,
        'KAO_KV by SDPA': operators.fused_kao_kv_attention,
        'KAO_QKV': operators.kao_qkv_attention,
    }
    return Entry([Contestant(name, pass_of(run, x, False), (x,)) for name, run in runs.items()])


def _layer(mode: str, training: bool, device: str) -> Entry:
    torch.manual_seed(0)
    layer: KroneckerAttention2d = build_layer('KroneckerAttention2d', _LARGE[1], dict(mode=mode))
    rivals = ['straightforward'] if training else ['straightforward', 'floor']
    return enter_layer(layer.to(device), _map(_LARGE, device), rivals, training)[0]


def _layers(mode: str, training: bool, bars: tuple[Bar, ...] = ()) -> Contest:
    kind = 'forward + backward' if training else 'forward'
    return Contest(
        f'kao-{mode}-{"training" if training else "forward"}-100x168',
        f'KAO_{mode.upper()} with residual, {kind}, 100 x 168 x 256, batch 2',
        lambda device: _layer(mode, training, device),
        bars,
    )


KRONECKER = (
    Contest(
        'kao-operators-56x56',
        'regular and Kronecker attention operators, forward, 56 x 56 x 8, batch 8',
        _operators_alone,
        (
            Bar('KAO_KV over regular, materialised', 'regular, materialised', 'KAO_KV', 50, 80),
            Bar('KAO_KV over SDPA', 'SDPA', 'KAO_KV', 10, 20),
            Bar('KAO_QKV over regular, materialised', 'regular, materialised', 'KAO_QKV', 1e3, 2e3),
            Bar('KAO_QKV over SDPA', 'SDPA', 'KAO_QKV', 200, 400),
        ),
    ),
    _layers(
        'qkv',
        False,
        (
            Bar(
                'KAO_QKV with residual, 100 x 168 x 256, over a clone of the map',
                OURS,
                CLONE,
                1.6,
                1.3,
                at_least=False,
            ),
        ),
    ),
    _layers('qkv', True),
    _layers('kv', False),
    _layers('kv', True),
)
