"""The words in ``at``."""

import pytest
from mmengine.registry import MODELS
from torch import nn

import kronattn_mm.registry  # noqa: F401
from kronattn_mm.plugging import Point, resolve_points, split_points

EA = dict(type='kronattn_mm.EfficientAttention2d', key_channels=4, value_channels=4)


def plugged(at, base='mmdet.ResNet', layer=EA, **arguments):
    if base == 'mmdet.ResNet':
        arguments.setdefault('depth', 18)
    return MODELS.build(
        dict(type='kronattn_mm.Plugged', base=base, insert=[dict(at=at, layer=layer)], **arguments)
    )


@pytest.mark.parametrize(
    'at, words',
    [
        ('res3', ['res3']),
        ('res3-4+fpn1-5', ['res3', 'res4', 'fpn1', 'fpn2', 'fpn3', 'fpn4', 'fpn5']),
        (' res1 + out0-1 ', ['res1', 'out0', 'out1']),
        ('stages.1-2', ['stages.1', 'stages.2']),
        ('layer3-3', ['layer3']),
        ('layer1.0.conv2', ['layer1.0.conv2']),
        ('res9-11', ['res9', 'res10', 'res11']),
    ],
)
def test_split(at, words):
    assert split_points(at) == words


@pytest.mark.parametrize(
    'at, error, message',
    [
        ('', ValueError, 'empty word'),
        ('res3++res4', ValueError, 'empty word'),
        ('res4-3', ValueError, "'res4-3' in `at` runs backwards"),
        ('res1-9999999', ValueError, 'longer than 1000'),
        (3, TypeError, 'got 3'),
        (['res3'], TypeError, r"got \['res3'\]"),
    ],
)
def test_split_refuses(at, error, message):
    with pytest.raises(error, match=message):
        split_points(at)


def test_resolve():
    base = MODELS.build(dict(type='mmdet.ResNet', depth=18))
    assert resolve_points(base, 'res3+layer2.1+out0', None) == [
        Point('res3', 'layer3'),
        Point('layer2.1', 'layer2.1'),
        Point('out0', '', 0),
    ]
    assert [point.name for point in resolve_points(base, 'layer[12].1', None)] == [
        'layer1.1',
        'layer2.1',
    ]
    assert Point('layer2.1', 'layer2.1').key == 'layer2_1'


@pytest.mark.parametrize(
    'at, message',
    [
        (
            'ers3',
            r"unknown point 'ers3' in ResNet; did you mean 'res3'\? points are res1, res2, res3",
        ),
        ('res5', "unknown point 'res5'"),
        ('res0', "unknown point 'res0'"),
        ('fpn1', "unknown point 'fpn1' in ResNet; points are"),
        ('res03', "unknown point 'res03'"),
        ('layer9*', "unknown point 'layer9"),
        ('out4', "there is no 'out4'; there are out0 to out3"),
        ('res3+layer3', r"the point 'layer3' is taken already \(by 'res3'\)"),
        ('layer1.0.bn1', "'layer1.0.bn1' is a batch norm.*insert at 'layer1.0' instead"),
        ('conv1', "'conv1' lies between the convolution 'conv1' and its batch norm 'bn1'"),
        ('layer1.0.conv2', "between the convolution 'conv2' and its batch norm 'bn2'"),
    ],
)
def test_refused_points(at, message):
    with pytest.raises(ValueError, match=message):
        plugged(at)


def test_a_star_matches_no_dot():
    base = MODELS.build(dict(type='mmdet.ResNet', depth=50))
    assert [point.name for point in resolve_points(base, 'layer3.*', None)] == [
        f'layer3.{block}' for block in range(6)
    ]


def test_module_used_with_several_widths():
    with pytest.raises(ValueError, match="'layer3.0.relu' is called several times.*256 and 1024"):
        plugged('layer3.0.relu', depth=50)


def test_residual_words_are_for_residual_networks():
    with pytest.raises(ValueError, match="unknown point 'res3' in MobileNetV2.*layer3"):
        plugged('res3', base='mmdet.MobileNetV2')


def test_neck_levels_are_counted():
    with pytest.raises(
        ValueError, match="FPN returns 5 outputs, there is no 'fpn6'; there are fpn1 to fpn5"
    ):
        plugged('fpn6', base='mmdet.FPN', in_channels=[8, 8, 8, 8], out_channels=8, num_outs=5)


class _WithUnused(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.relu_unused = nn.ReLU()

    def forward(self, x):
        return self.conv(x)


def test_module_that_never_runs():
    with pytest.raises(ValueError, match="'relu_unused' of _WithUnused is not called"):
        plugged('relu_unused', base=_WithUnused)


@pytest.mark.parametrize(
    'base, at, arguments',
    [
        ('mmdet.CSPDarknet', 'stage2+out1', dict(widen_factor=0.25)),  # folds pixels into channels
        ('mmdet.BFP', 'out0-3', dict(in_channels=8, num_levels=4)),
        ('mmdet.RetinaHead', 'cls_convs.1', dict(in_channels=8, feat_channels=4, num_classes=2)),
    ],
)
def test_unusual_inputs(base, at, arguments):
    layer = dict(EA, zero_init=False)
    assert plugged(at, base=base, layer=layer, **arguments).attention


def test_single_output_has_no_out0():
    with pytest.raises(ValueError, match='returns one tensor'):
        plugged('out0', base='mmdet.FCNMaskHead', in_channels=8, num_convs=1, conv_out_channels=8)


def test_tokens_are_refused():
    with pytest.raises(ValueError, match='tokens before channels'):
        plugged(
            'stages.1.blocks.0',
            base='mmdet.SwinTransformer',
            embed_dims=24,
            depths=(1, 1, 1, 1),
            num_heads=(1, 1, 1, 1),
        )
    with pytest.raises(ValueError, match='9 maps for one image'):  # windows, not images
        plugged(
            'stages.0.blocks.0.attn.w_msa',
            base='mmdet.SwinTransformer',
            embed_dims=24,
            depths=(1, 1, 1, 1),
            num_heads=(1, 1, 1, 1),
        )
    with pytest.raises(ValueError, match='rows before channels'):
        plugged(
            'stages.0.0.pointwise_conv1',
            base='mmpretrain.ConvNeXt',
            use_grn=True,
            arch=dict(depths=[1, 1, 1, 1], channels=[16, 32, 48, 64]),
        )
    with pytest.raises(ValueError, match='several outputs'):
        plugged(
            'stages.1',
            base='mmdet.SwinTransformer',
            embed_dims=24,
            depths=(1, 1, 1, 1),
            num_heads=(1, 1, 1, 1),
        )
