"""docs/insertion_points.md: every word in the diagrams names a place, and reaches what is said."""

import sys

import pytest
import torch
from documentation import DOCS, ROOT

pytest.importorskip('mmdet')
pytest.importorskip('mmseg')
from mmengine.registry import MODELS

from kronattn_mm.plugging import Plugged, resolve_points

sys.path.insert(0, str(ROOT / 'tools' / 'docs'))
import insertion_diagrams

ADD_ONE = dict(type='PageAddOne')


@MODELS.register_module()
class PageAddOne(torch.nn.Module):
    def __init__(self, in_channels):
        super().__init__()

    def forward(self, x):
        return x + 1


def built(base, **arguments):
    return MODELS.build(dict(type=base, **arguments))


# What each diagram shows: modules, and for words without their full path what comes before them.
NETWORKS = {
    'points_resnet': lambda: [(built('mmdet.ResNet', depth=18), '')],
    'points_fpn': lambda: [
        (built('mmdet.FPN', in_channels=[8, 8, 8, 8], out_channels=8, num_outs=5), '')
    ],
    'points_mobilenet_v2': lambda: [(built('mmdet.MobileNetV2', widen_factor=0.1), 'layer3.1.')],
    'points_ssd': lambda: [
        (
            built(
                'mmdet.SSDVGG',
                input_size=300,
                depth=16,
                with_last_pool=False,
                ceil_mode=True,
                out_indices=(3, 4),
                out_feature_indices=(22, 34),
            ),
            '',
        ),
        (
            built(
                'mmdet.SSDNeck',
                in_channels=(512, 1024),
                out_channels=(512, 1024, 8, 8, 8, 8),
                level_strides=(2, 2, 1, 1),
                level_paddings=(1, 1, 0, 0),
            ),
            '',
        ),
    ],
    'points_deeplab': lambda: [
        (built('mmseg.ResNet', depth=18, strides=(1, 2, 1, 1), dilations=(1, 1, 2, 4)), ''),
        (built('mmseg.ASPPHead', in_channels=8, channels=8, num_classes=2, dilations=(1, 6)), ''),
    ],
}


@pytest.mark.parametrize('name', NETWORKS)
def test_words_of_a_diagram_are_points(name):
    drawing = insertion_diagrams.DIAGRAMS[name]()
    networks = NETWORKS[name]()
    assert drawing.words
    for word in drawing.words:
        found = []
        for network, inside in networks:
            levels = 6 if type(network).__name__ in ('FPN', 'SSDNeck') else None
            for full in dict.fromkeys((word, inside + word)):
                try:
                    found += resolve_points(network, full, levels)
                except ValueError:
                    continue
        assert found, word
    assert (DOCS / 'images' / f'{name}.png').is_file()
    assert f'images/{name}.png' in (DOCS / 'insertion_points.md').read_text(encoding='utf-8')


def test_an_output_changes_nothing_within_and_a_module_inside_everything_later():
    torch.manual_seed(0)
    arguments = dict(in_channels=[8, 8, 8, 8], out_channels=8, num_outs=5)
    plain = built('mmdet.FPN', **arguments)
    maps = [torch.randn(1, 8, side, side) for side in (16, 8, 4, 2)]
    before = plain(maps)

    def changed(at):
        plugged = Plugged('mmdet.FPN', insert=[dict(at=at, layer=ADD_ONE)], **arguments)
        plugged.load_state_dict(plain.state_dict())
        return [not torch.equal(new, old) for new, old in zip(plugged(maps), before, strict=True)]

    assert changed('fpn4') == [False, False, False, True, False]
    assert changed('lateral_convs.3') == [True] * 5
    assert changed('lateral_convs.1') == [True, True, False, False, False]
