"""What ``attention_status`` says of a model, beside what is known to be true."""

import pytest
import torch
from mmengine.registry import MODELS
from torch import nn

import kronattn_mm.registry  # noqa: F401
from kronattn_mm import attention_status
from kronattn_mm.cost.report import cost_report
from kronattn_mm.plugging import switches

EA = dict(type='kronattn_mm.EfficientAttention2d', key_channels=4, value_channels=4)


class GatedConv2d(nn.Conv2d):
    """A convolution times a gate from the mean of its input; new parameters under attention."""

    def __init__(self, *args, **geometry):
        super().__init__(*args, **geometry)
        self.attention = nn.Sequential(
            nn.Conv2d(self.in_channels, self.out_channels, 1), nn.BatchNorm2d(self.out_channels)
        )

    def forward(self, x):
        return super().forward(x) * (1 + self.attention(x.mean((2, 3), keepdim=True)))


def detector():
    return MODELS.build(
        dict(
            type='mmdet.RetinaNet',
            data_preprocessor=dict(type='mmdet.DetDataPreprocessor'),
            backbone=dict(
                type='kronattn_mm.Plugged',
                base='mmdet.ResNet',
                depth=18,
                out_indices=(1, 2, 3),
                insert=[dict(at='res3', layer=EA, enabled=False)],
                convs=[dict(at='layer4.1.conv2', layer=dict(type=GatedConv2d))],
            ),
            neck=dict(
                type='kronattn_mm.Plugged',
                base='mmdet.FPN',
                in_channels=[128, 256, 512],
                out_channels=16,
                num_outs=3,
                insert=[
                    dict(
                        at='fpn1',
                        layer=dict(type='NonLocal2d', reduction=2, norm_cfg=dict(type='BN')),
                        norm_eval=True,
                    )
                ],
            ),
            bbox_head=dict(
                type='mmdet.RetinaHead',
                num_classes=2,
                in_channels=16,
                feat_channels=16,
                stacked_convs=1,
            ),
        )
    )


def test_rows_of_a_detector():
    model = detector()
    for parameter in model.backbone.attention.res3.keys.parameters():
        parameter.requires_grad = False
    for parameter in model.neck.attention.parameters():
        parameter.requires_grad = False
    switches(model)['neck.fpn1'].scale = 0.5
    before = {name: (part.enabled, part.scale) for name, part in switches(model).items()}
    rows = {row.name: row for row in attention_status(model, (128, 192))}
    assert list(rows) == ['backbone.res3', 'neck.fpn1', 'backbone.layer4.1.conv2']
    res3, fpn1, conv = rows.values()
    assert (res3.kind, fpn1.kind, conv.kind) == ('insert', 'insert', 'conv')
    assert (res3.layer, fpn1.layer, conv.layer) == (
        'EfficientAttention2d',
        'NonLocal2d',
        'GatedConv2d',
    )
    assert (res3.channels, fpn1.channels, conv.channels) == (256, 16, 512)
    # A layer that is off sees no input, and its shape and cost are told all the same.
    assert res3.shape == (1, 256, 8, 12)
    assert fpn1.shape == (1, 16, 16, 24)
    assert conv.shape == (1, 512, 4, 6)
    assert res3.parameters == 3 * (256 * 4 + 4) + 4 * 256 + 256
    assert conv.parameters == 512 * 512 + 512 + 2 * 512
    # Four 1x1 convolutions of n d d_k, and the two products with the context of d_k d_v.
    assert res3.macs == 96 * (4 * 256 * 4 + 2 * 4 * 4)
    assert conv.macs == 512 * 512, 'what the gate costs, not the convolution'
    total = sum(parameter.numel() for parameter in model.parameters())
    assert res3.share == pytest.approx(res3.parameters / total)
    assert (res3.enabled, fpn1.enabled, conv.enabled) == (False, True, True)
    assert (res3.scale, fpn1.scale, conv.scale) == (1, 0.5, 1)
    assert (res3.trainable, fpn1.trainable, conv.trainable) == ('some', 'none', 'all')
    assert (res3.norms, fpn1.norms, conv.norms) == ('none', 'eval', 'train')
    report = cost_report(model, (128, 192))
    assert [layer.shape for layer in report.layers] == [res3.shape, fpn1.shape]
    assert report.layers[0].reached and report.layers[0].executed.macc == res3.macs
    assert before == {name: (part.enabled, part.scale) for name, part in switches(model).items()}


def test_without_an_image_shape_and_for_a_part():
    model = detector()
    rows = attention_status(model)
    assert [row.shape for row in rows] == [None] * 3 and [row.macs for row in rows] == [None] * 3
    assert [row.name for row in attention_status(model.neck)] == ['fpn1']
    assert attention_status(MODELS.build(dict(type='mmdet.ResNet', depth=18))) == []
    with pytest.raises(TypeError, match='no extract_feat'):
        attention_status(model.neck, (64, 64))
    model.eval()
    assert [row.norms for row in attention_status(model)] == ['none', 'eval', 'eval']
    assert torch.is_grad_enabled()
