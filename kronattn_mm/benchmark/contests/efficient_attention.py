"""Efficient attention's block against its straightforward form, non-local blocks and the floor.

d = 256, d_k = d_v = 64, one head, batch 1, float32, softmax: the sizes of the levels of a feature
pyramid for pictures of 448 x 640, 896 x 1280 and 1792 x 2560 at stride 8, and small maps down to
7 x 7, where the fixed cost of every operator shows.
"""

import torch

from ...layers import EfficientAttention2d
from ...ops.whole_map import whole_map_attention
from ..contest import FLOOR, Bar, Contest, Contestant, Entry
from ..rivals import OURS, build_layer, enter_layer, pass_of

_CHANNELS = 256
_FORWARD = {(56, 80): (2.2, 2.5), (112, 160): (2.2, 2.5), (224, 320): (2.5, 3.0)}
_TRAINING = {(56, 80): (1.3, 1.6), (112, 160): (1.4, 1.8), (224, 320): (2.0, 2.2)}
_SMALL = ((7, 7), (10, 10), (14, 14), (14, 20), (20, 28), (28, 40))
_INNER = 128
_KEPT = 'maps kept'


def _map(size: tuple[int, int], device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, _CHANNELS, *size, generator=generator).to(device)


def _layer(device: str) -> EfficientAttention2d:
    torch.manual_seed(0)
    return build_layer('EfficientAttention2d', _CHANNELS, {}).to(device)


def _enter(size: tuple[int, int], training: bool, rivals: list[str], device: str) -> Entry:
    return enter_layer(_layer(device), _map(size, device), rivals, training)[0]


def _name(size: tuple[int, int]) -> str:
    return f'{size[0]} x {size[1]}'


def _forward(size: tuple[int, int]) -> Contest:
    must, aim = _FORWARD[size]
    what = f'EA forward, {_name(size)}'
    bars = [Bar(what, 'straightforward', OURS, must, aim, fresh='straightforward')]
    if size == (224, 320):
        bars.append(Bar(f'{what}, over the floor', OURS, FLOOR, 2.0, 1.4, at_least=False))
    return Contest(
        f'ea-forward-{size[0]}x{size[1]}',
        f'efficient attention, forward, {_name(size)}',
        lambda device: _enter(size, False, ['straightforward', 'compiled', 'floor'], device),
        tuple(bars),
    )


def _training(size: tuple[int, int]) -> Contest:
    must, aim = _TRAINING[size]
    what = f'EA forward + backward, {_name(size)}'
    return Contest(
        f'ea-training-{size[0]}x{size[1]}',
        f'efficient attention, forward + backward, {_name(size)}',
        lambda device: _enter_training(size, device),
        (
            Bar(what, 'straightforward', OURS, must, aim, fresh='straightforward'),
            Bar(f'{what}, over keeping the maps', OURS, _KEPT, 1.2, 1.0, at_least=False),
            Bar(
                f'EA bytes kept for backward, {_name(size)}',
                OURS,
                'straightforward',
                0.26,
                0.02,
                at_least=False,
                figure='kept',
            ),
        ),
    )


def _enter_training(size: tuple[int, int], device: str) -> Entry:
    layer, x = _layer(device), _map(size, device)
    entry, _ = enter_layer(layer, x, ['straightforward', 'compiled', 'floor'], training=True)
    return Entry([*entry.contestants, _keeping_maps(layer, x)], entry.needs)


def _keeping_maps(layer: EfficientAttention2d, x: torch.Tensor) -> Contestant:
    """The same grouping on the whole map, differentiated by autograd, which keeps the maps."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        projections = layer._projections(layer._convs())
        return whole_map_attention(x, projections, layer.num_heads, layer.normalization, 'inputs')

    run = pass_of(attend, x, training=True, weights=layer)
    return Contestant(_KEPT, run, (x, *layer.parameters()), training=True)


def _small(size: tuple[int, int], training: bool) -> Contest:
    kind = 'forward + backward' if training else 'forward'
    return Contest(
        f'ea-small-{"training" if training else "forward"}-{size[0]}x{size[1]}',
        f'efficient attention, {kind}, {_name(size)}',
        lambda device: _enter(size, training, ['straightforward'], device),
        (Bar(f'EA {kind}, {_name(size)}', OURS, 'straightforward', 1.05, 1.0, at_least=False),),
    )


def _against_non_local(device: str) -> Entry:
    x = _map((56, 80), device)
    ours, _ = enter_layer(_layer(device), x, [])
    wide = build_layer('EfficientAttention2d', _CHANNELS, dict(key_channels=_INNER)).to(device)
    rivals, _ = enter_layer(wide, x, ['NonLocal', 'SDPA'])
    return Entry([*ours.contestants, *rivals.contestants[1:]])


_NON_LOCAL = Contest(
    'ea-non-local-56x80',
    f'efficient attention and non-local blocks of inner width {_INNER}, forward, 56 x 80',
    _against_non_local,
    (
        Bar('EA over non-local, materialised, 56 x 80', 'NonLocal', OURS, 20, 35),
        Bar('EA over non-local by SDPA, 56 x 80', 'SDPA', OURS, 10, 14),
    ),
)

# From small to large: in one process, glibc decides by the largest block that was freed which it
# keeps.
EFFICIENT_ATTENTION = (
    *(_small(size, training) for size in _SMALL for training in (False, True)),
    _NON_LOCAL,
    *(contest(size) for size in _FORWARD for contest in (_forward, _training)),
)
