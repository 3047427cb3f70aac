"""The parts of SSD-MobileNetV2: backbone, extra levels, head and priors."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip('mmdet')

from mmengine.registry import MODELS, TASK_UTILS, init_default_scope

# Channels of layer5 times six; pytorch-ssd's int(96 w) times six differs from them at 0.35 only,
# where its head expects 202 and its backbone has 198.
EXPANSION_CHANNELS = {0.35: 192, 0.5: 288, 0.75: 432, 1.0: 576}
SHIFT_BALANCE = dict(at='layer*', layer=dict(type='kronattn_mm.ShiftBalanceConv2d'))
ANCHORS = dict(
    type='kronattn_mm.ClippedSSDAnchorGenerator',
    input_size=300,
    strides=[16, 32, 64, 100, 150, 300],
    ratios=[[2, 3]] * 6,
    min_sizes=[60, 105, 150, 195, 240, 285],
    max_sizes=[105, 150, 195, 240, 285, 330],
)
BATCH_NORM, RELU6 = dict(type='BN'), dict(type='ReLU6')


@pytest.fixture(autouse=True)
def mmdet_scope() -> None:
    init_default_scope('mmdet')


def backbone(**arguments) -> nn.Module:
    return MODELS.build(dict(type='kronattn_mm.ExpansionMobileNetV2', **arguments))


# -- backbone ------------------------------------------------------------------------------------


@pytest.mark.parametrize('width', EXPANSION_CHANNELS)
def test_backbone_returns_the_expansion_and_is_mmdets(width: float) -> None:
    ours = backbone(widen_factor=width).eval()
    theirs = MODELS.build(dict(type='MobileNetV2', widen_factor=width, out_indices=(5, 7)))
    theirs.eval()  # mmdet's returns nothing
    theirs.load_state_dict(ours.state_dict(), strict=True)
    seen = []
    theirs.layer6[0].expand_conv.register_forward_hook(lambda *call: seen.append(call[2]))
    x = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        outs, (layer6, conv2) = ours(x), theirs(x)
        (expansion,) = seen
        assert torch.equal(outs[0], expansion) and torch.equal(outs[1], conv2)
        assert outs[0].shape == (1, EXPANSION_CHANNELS[width], 4, 6)
        assert outs[1].shape == (1, 1280, 2, 3)
        ours = backbone(widen_factor=width, expansion_indices=(5, 3), out_indices=(7, 5)).eval()
        ours.load_state_dict(theirs.state_dict(), strict=True)
        outs = ours(x)
    assert [out.shape[-1] for out in outs] == [12, 6, 3, 3]  # from fine to coarse
    assert torch.equal(outs[1], expansion) and torch.equal(outs[2], layer6)


def test_backbone_trains_every_weight() -> None:
    model = MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base='kronattn_mm.ExpansionMobileNetV2',
            widen_factor=0.35,
            convs=[SHIFT_BALANCE],
        )
    )
    sum(out.square().mean() for out in model(torch.randn(2, 3, 64, 64))).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (dict(expansion_indices=(0,)), 'must be from 1 to 6, got 0 in'),
        (dict(expansion_indices=(5, 7)), 'must be from 1 to 6, got 7 in'),
        (dict(expansion_indices=(5, 5)), 'names a stage twice'),
        (dict(expansion_indices=(4,), widen_factor=0.05), 'layer5 has a shortcut'),
    ],
)
def test_backbone_refuses(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        backbone(**arguments)


def test_imagenet_weights_load(shared: Path) -> None:
    weights = shared / 'weights' / 'mobilenet_v2_1.0_imagenet_mmdet.pth'
    state = torch.load(weights, weights_only=True)['state_dict']
    plain = backbone()
    plain.load_state_dict(state, strict=True)
    attended = MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base='kronattn_mm.ExpansionMobileNetV2',
            convs=[
                dict(
                    at='layer*', layer=dict(type='kronattn_mm.ShiftBalanceConv2d', lambda_init=0.0)
                )
            ],
        )
    )
    result = attended.load_state_dict(state, strict=False)
    assert not result.unexpected_keys
    assert result.missing_keys and all('.attention.' in key for key in result.missing_keys)
    # With lambda 0 the trained network is what it was, bit for bit; with the paper's 0.1 it is not.
    x = torch.randn(1, 3, 64, 64)
    plain.eval(), attended.eval()
    with torch.no_grad():
        wanted = plain(x)
        assert all(torch.equal(a, b) for a, b in zip(attended(x), wanted, strict=True))
        for name, parameter in attended.named_parameters():
            if name.endswith('lambda_'):
                parameter.fill_(0.1)
        assert not torch.equal(attended(x)[1], wanted[1])


# -- extra levels --------------------------------------------------------------------------------


def test_neck_narrows_by_its_ratios_and_halves() -> None:
    neck = MODELS.build(
        dict(
            type='kronattn_mm.SSDLiteNeck',
            in_channels=(576, 1280),
            extra_channels=(512, 256, 256, 64),
            expand_ratios=(0.2, 0.25, 0.5, 0.25),
        )
    )
    hidden = [layer.depthwise_conv.conv.out_channels for layer in neck.extra_layers]
    assert hidden == [256, 128, 128, 64]
    # As initialised: Xavier, which mmcv's ConvModules do not draw anew.
    neck.init_weights()
    for layer in neck.extra_layers:
        bound = math.sqrt(6 / (layer.expand_conv.in_channels + layer.expand_conv.out_channels))
        assert 0.95 * bound < layer.expand_conv.conv.weight.abs().max() <= bound
    maps = (torch.randn(2, 576, 19, 19), torch.randn(2, 1280, 10, 10))
    outs = neck(maps)
    assert outs[0] is maps[0] and outs[1] is maps[1]
    assert [tuple(out.shape[1:]) for out in outs[2:]] == [
        (512, 5, 5),
        (256, 3, 3),
        (256, 2, 2),
        (64, 1, 1),
    ]
    # The last convolution of a block has no activation.
    assert all(out.min() < 0 for out in outs[2:])
    with pytest.raises(ValueError, match='takes 2 maps, got 3'):
        neck((*maps, maps[1]))


@pytest.mark.parametrize(
    ('arguments', 'error', 'message'),
    [
        (dict(in_channels=()), ValueError, 'in_channels must have at least one entry'),
        (dict(expand_ratios=(0.2, 0.5)), ValueError, 'must have the same length'),
        (dict(expand_ratios=(0.0,)), ValueError, 'each of expand_ratios must be above 0'),
        (dict(expand_ratios=(0.01,)), ValueError, 'hidden channels must be at least 1'),
        (dict(extra_channels=(1.5,)), TypeError, 'each of extra_channels must be an integer'),
    ],
)
def test_neck_refuses(arguments: dict, error: type, message: str) -> None:
    config = dict(in_channels=(8, 16), extra_channels=(8,), expand_ratios=(0.5,))
    with pytest.raises(error, match=message):
        MODELS.build(dict(type='kronattn_mm.SSDLiteNeck', **{**config, **arguments}))


# -- head and priors -----------------------------------------------------------------------------


def head(kind: str, **arguments) -> nn.Module:
    config = dict(
        in_channels=(8, 16, 12),
        num_classes=4,
        use_depthwise=True,
        norm_cfg=BATCH_NORM,
        act_cfg=RELU6,
        anchor_generator=dict(
            type='SSDAnchorGenerator',
            scale_major=False,
            strides=[8, 16, 32],
            ratios=[[2, 3]] * 3,
            min_sizes=[8, 16, 32],
            max_sizes=[16, 32, 64],
        ),
    )
    return MODELS.build(dict(type=kind, **{**config, **arguments}))


def test_last_predictor_of_the_head_is_one_convolution() -> None:
    ours, theirs = head('kronattn_mm.SSDLiteHead').eval(), head('SSDHead').eval()
    for predictors, outputs in ((ours.cls_convs, 6 * 5), (ours.reg_convs, 6 * 4)):
        (conv,) = predictors[-1]
        assert (conv.kernel_size, conv.in_channels, conv.out_channels) == ((1, 1), 12, outputs)
    state = ours.state_dict()
    last = {name for name in state if '_convs.2.' in name}
    assert last == {
        name.replace('.2.1.', '.2.0.') for name in theirs.state_dict() if '_convs.2.1.' in name
    }
    theirs.load_state_dict(
        {name: value for name, value in state.items() if name not in last}, strict=False
    )
    maps = [torch.randn(2, channels, 6, 5) for channels in (8, 16, 12)]
    for ours_each, theirs_each in zip(ours(maps), theirs(maps), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours_each[:2], theirs_each[:2], strict=True))
    scores, boxes = ours(maps)
    assert torch.equal(scores[2], ours.cls_convs[2][0](maps[2]))
    assert boxes[2].shape == (2, 24, 6, 5)
    with pytest.raises(ValueError, match='use_depthwise=False; without them take kronattn_mm.SSD'):
        head('kronattn_mm.SSDLiteHead', use_depthwise=False)


def priors_by_the_rule() -> np.ndarray:
    """Return SSD's priors (centre x, y, width, height), written down from pytorch-ssd's rule."""
    priors = []
    levels = [
        (19, 16, 60, 105),
        (10, 32, 105, 150),
        (5, 64, 150, 195),
        (3, 100, 195, 240),
        (2, 150, 240, 285),
        (1, 300, 285, 330),
    ]
    for cells, stride, smallest, largest in levels:
        for row in range(cells):
            for column in range(cells):
                centre = [(column + 0.5) * stride, (row + 0.5) * stride]
                between = math.sqrt(smallest * largest)
                sizes = [(smallest, smallest), (between, between)]
                for ratio in (2, 3):
                    sizes += [
                        (smallest * ratio**0.5, smallest / ratio**0.5),
                        (smallest / ratio**0.5, smallest * ratio**0.5),
                    ]
                priors += [[*centre, *size] for size in sizes]
    return np.array(priors).clip(0, 300)


def test_the_3000_priors_are_those_of_the_rule() -> None:
    generator = TASK_UTILS.build(ANCHORS)
    levels = generator.grid_priors([(n, n) for n in (19, 10, 5, 3, 2, 1)], device='cpu')
    corners = torch.cat(levels).double().numpy()
    wanted = priors_by_the_rule()
    assert corners.shape == wanted.shape == (3000, 4)
    got = np.concatenate(
        [(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]], axis=1
    )
    np.testing.assert_allclose(got, wanted, atol=1e-4)
    # Clipping is of size and centre: 9.5 x 32 is outside, and so is a side of 285 sqrt(2).
    assert got[:, :2].max() == 300 and got[:, 2:].max() == 300
    assert corners.min() < 0 and corners.max() > 300
    unclipped = TASK_UTILS.build(dict(ANCHORS, type='SSDAnchorGenerator', scale_major=False))
    raw = torch.cat(unclipped.grid_priors([(n, n) for n in (19, 10, 5, 3, 2, 1)], device='cpu'))
    assert (raw[:, 2] - raw[:, 0]).max() > 400
    changed = (np.abs(raw.double().numpy() - corners) > 1e-3).any(1)
    assert not changed[: 19 * 19 * 6].any() and changed[-1]
    with pytest.raises(ValueError, match='input_size must be at least 1, got 0'):
        TASK_UTILS.build(dict(ANCHORS, input_size=0))
