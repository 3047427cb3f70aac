"""Attended convolutions in networks of the libraries, by ``conv_cfg`` and by ``convs``."""

import copy

import pytest
import torch
from mmengine.model import ExponentialMovingAverage
from mmengine.registry import MODELS

import kronattn_mm.registry  # noqa: F401
from kronattn_mm import layers
from kronattn_mm.plugging import replaced_convs

TYPES = ['ShiftBalanceConv2d', 'SqueezeExciteConv2d', 'DynamicConv2d', 'CondConv2d']


def attended(model, kind):
    cls = getattr(layers, kind)
    return [module for module in model.modules() if isinstance(module, cls)]


@pytest.mark.parametrize('kind', TYPES)
def test_the_papers_fifty_and_all_fifty_two(kind):
    plain = MODELS.build(dict(type='mmdet.MobileNetV2'))
    layer = dict(type=f'kronattn_mm.{kind}')
    fifty = MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base='mmdet.MobileNetV2',
            convs=[dict(at='layer*', layer=layer)],
        )
    )
    all_of_them = MODELS.build(dict(type='mmdet.MobileNetV2', conv_cfg=layer))
    assert len(attended(fifty, kind)) == len(replaced_convs(fifty)) == 50
    assert len(attended(all_of_them, kind)) == 52
    for model in (fifty, all_of_them):
        result = model.load_state_dict(plain.state_dict(), strict=False)
        assert not result.unexpected_keys
        assert all('.conv.attention.' in key for key in result.missing_keys)


@pytest.mark.parametrize(
    'base, arguments, count',
    [
        ('mmdet.ResNet', dict(depth=50), 53),
        ('mmpretrain.MobileNetV2', dict(widen_factor=0.35), 52),
        ('mmpretrain.ShuffleNetV2', dict(widen_factor=0.5), 56),
        ('mmseg.MobileNetV2', dict(), 51),
    ],
)
def test_conv_cfg_of_other_backbones(base, arguments, count):
    layer = dict(type='kronattn_mm.ShiftBalanceConv2d', lambda_init=0.0)
    model = MODELS.build(dict(type=base, conv_cfg=layer, **arguments))
    plain = MODELS.build(dict(type=base, **arguments))
    assert len(attended(model, 'ShiftBalanceConv2d')) == count
    assert not model.load_state_dict(plain.state_dict(), strict=False).unexpected_keys
    model.eval(), plain.eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(model(x), plain(x), strict=True))


@pytest.mark.parametrize('kind', TYPES)
def test_initialised_as_the_network_says(kind):
    """mmengine compares the name of a class and of its bases; weights must not be left out."""
    model = MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base='mmdet.MobileNetV2',
            init_cfg=[dict(type='Normal', std=1e-5, layer='Conv2d')],
            convs=[dict(at='layer*', layer=dict(type=f'kronattn_mm.{kind}'))],
        )
    )
    model.init_weights()
    for conv in attended(model, kind):
        assert conv.weight.abs().max() < 1e-3
        if kind in ('DynamicConv2d', 'CondConv2d'):
            kernels = [conv.weight, *[kernel.weight for kernel in conv.attention.kernels]]
            assert all(kernel.abs().max() < 1e-3 for kernel in kernels)
            assert len({float(kernel.detach().sum()) for kernel in kernels}) == 4
    if kind == 'ShiftBalanceConv2d':
        assert all(
            torch.equal(
                conv.attention.lambda_.detach(), torch.full_like(conv.attention.lambda_, 0.1)
            )
            for conv in attended(model, kind)
        )


@pytest.mark.parametrize('kind', TYPES)
def test_averaged_copy_and_one_image_in_training(kind):
    model = MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base='mmdet.MobileNetV2',
            widen_factor=0.35,
            norm_eval=True,
            convs=[dict(at='layer*', layer=dict(type=f'kronattn_mm.{kind}'))],
        )
    )
    average = ExponentialMovingAverage(model, momentum=0.5, update_buffers=True)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        sum(out.square().mean() for out in model(torch.randn(1, 3, 64, 64))).backward()
        unused = [name for name, parameter in model.named_parameters() if parameter.grad is None]
        assert not unused
        optimizer.step()
        average.update_parameters(model)
    x = torch.randn(1, 3, 64, 64)
    model.eval(), average.eval()
    with torch.no_grad():
        theirs, ours = average(x), model(x)
    assert all(torch.isfinite(out).all() for out in theirs)
    assert not torch.equal(theirs[-1], ours[-1])


def test_a_copy_is_another_network():
    model = MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base='mmdet.MobileNetV2',
            widen_factor=0.35,
            convs=[dict(at='layer*', layer=dict(type='kronattn_mm.ShiftBalanceConv2d'))],
        )
    )
    model.eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        before = model(x)
        copied = copy.deepcopy(model)
        for parameter in copied.parameters():
            parameter.zero_()
        assert all(torch.equal(a, b) for a, b in zip(model(x), before, strict=True))
        assert not torch.equal(copied(x)[0], before[0])


def test_convolutions_made_efficient_by_mmcv_are_refused():
    """It would compute the convolution and its norm, and leave the attention out."""
    from mmcv.cnn import ConvModule

    block = ConvModule(
        3,
        4,
        1,
        norm_cfg=dict(type='BN'),
        efficient_conv_bn_eval=True,
        conv_cfg=dict(type='kronattn_mm.ShiftBalanceConv2d'),
    )
    block.eval()
    with pytest.raises(RuntimeError, match='turn off efficient_conv_bn_eval'):
        block(torch.randn(2, 3, 5, 5))
