"""Replacing chosen convolutions."""

import pytest
import torch
from mmengine.registry import MODELS
from torch import nn

import kronattn_mm.registry  # noqa: F401
from kronattn_mm.plugging import replaced_convs


class ScaledConv2d(nn.Conv2d):
    """A convolution with one more parameter, which starts without effect."""

    def __init__(self, *args, gain=0.0, **geometry):
        super().__init__(*args, **geometry)
        self.attention = nn.Module()
        self.attention.gain = nn.Parameter(torch.full((self.out_channels, 1, 1), gain))

    def forward(self, x):
        return super().forward(x) * (1 + self.attention.gain)


SCALED = dict(type=ScaledConv2d)


def plugged(*convs, base='mmdet.MobileNetV2', insert=(), **arguments):
    return MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base=base,
            convs=list(convs),
            insert=list(insert),
            **arguments,
        )
    )


def test_the_fifty_convolutions_of_the_blocks():
    plain = MODELS.build(dict(type='mmdet.MobileNetV2'))
    module = plugged(dict(at='layer*', layer=SCALED))
    assert len(replaced_convs(module)) == 50
    assert sum(isinstance(child, ScaledConv2d) for child in module.modules()) == 50
    assert type(module.conv1.conv) is nn.Conv2d and type(module.conv2.conv) is nn.Conv2d
    result = module.load_state_dict(plain.state_dict(), strict=False)
    assert not result.unexpected_keys
    assert all('.conv.attention.' in key for key in result.missing_keys)
    plain.eval(), module.eval()
    x = torch.randn(1, 3, 64, 64)
    assert all(torch.equal(a, b) for a, b in zip(module(x), plain(x), strict=True))
    with torch.no_grad():
        module.layer3[0].depthwise_conv.conv.attention.gain.fill_(0.5)
    assert not torch.equal(module(x)[1], plain(x)[1])


def test_geometry_and_weights_are_kept():
    module = plugged(dict(at='layer*.depthwise_conv.conv', layer=SCALED))
    plain = MODELS.build(dict(type='mmdet.MobileNetV2'))
    for path in replaced_convs(module):
        new, old = module.get_submodule(path), plain.get_submodule(path)
        for name in (
            'in_channels',
            'out_channels',
            'kernel_size',
            'stride',
            'padding',
            'dilation',
            'groups',
            'padding_mode',
        ):
            assert getattr(new, name) == getattr(old, name), (path, name)
        assert (new.bias is None) == (old.bias is None)
        assert new.groups == new.in_channels


def test_weights_drawn_before_are_carried_over():
    torch.manual_seed(5)
    plain = MODELS.build(dict(type='mmdet.ResNet', depth=18))
    torch.manual_seed(5)
    module = plugged(dict(at='layer4+layer1.0.conv1', layer=SCALED), base='mmdet.ResNet', depth=18)
    assert set(replaced_convs(module)) == {
        'layer1.0.conv1',
        'layer4.0.conv1',
        'layer4.0.conv2',
        'layer4.0.downsample.0',
        'layer4.1.conv1',
        'layer4.1.conv2',
    }
    assert torch.equal(module.layer4[0].conv2.weight, plain.layer4[0].conv2.weight)


def test_registered_type_and_frozen_weights():
    module = plugged(
        dict(at='layer1*', layer=dict(type='ConvAWS')),
        base='mmdet.ResNet',
        depth=18,
        frozen_stages=1,
    )
    assert type(module.layer1[0].conv1).__name__ == 'ConvAWS2d'
    assert not module.layer1[0].conv1.weight.requires_grad


def test_together_with_insertions():
    ea = dict(type='kronattn_mm.EfficientAttention2d', key_channels=4, value_channels=4)
    module = plugged(
        dict(at='layer4', layer=SCALED),
        base='mmdet.ResNet',
        depth=18,
        insert=[dict(at='res4', layer=ea)],
    )
    sum(output.sum() for output in module(torch.randn(2, 3, 64, 64))).backward()
    assert module.layer4[0].conv1.attention.gain.grad is not None
    assert module.attention.res4.reprojection.weight.grad is not None


class Sparse(nn.Conv2d):
    def __init__(self, *args, **geometry):
        super().__init__(*args, **geometry)
        self.weight = nn.Parameter(self.weight[:1])


@pytest.mark.parametrize(
    'convs, error, message',
    [
        (
            [dict(at='stage*', layer=SCALED)],
            ValueError,
            "'stage.*' matches no convolution of MobileNetV2; there are conv1.conv",
        ),
        (
            [dict(at='layer1', layer=SCALED), dict(at='layer1.0.linear_conv.conv', layer=SCALED)],
            ValueError,
            "'layer1.0.linear_conv.conv' is named by two entries",
        ),
        ([dict(at='layer1', layer=dict(type='ConvASW'))], ValueError, "did you mean 'ConvAWS'"),
        ([dict(at='layer1', layer=dict())], ValueError, 'needs a type'),
        (
            [dict(at='layer1', layer=dict(type=Sparse))],
            ValueError,
            'Sparse has no weight of the shape',
        ),
        (
            [dict(at='layer1', layer=dict(**SCALED, out_channels=7))],
            ValueError,
            "'out_channels' in `layer` of `convs` is taken from the convolution.*out_channels=7",
        ),
        ([dict(at='layer1', layer=SCALED, norm_eval=True)], ValueError, "unknown key 'norm_eval'"),
        (
            [dict(at='layer1', layer=dict(type='kronattn_mm.EfficientAttention2d'))],
            TypeError,
            'no argument',
        ),
    ],
)
def test_bad_convs(convs, error, message):
    with pytest.raises(error, match=message):
        plugged(*convs)


@pytest.mark.parametrize('kind', ['ConvWS', 'Conv2dAdaptivePadding'])
def test_convolutions_that_do_more_are_refused(kind):
    # Their keys are those of a plain one, so that only the results would tell.
    with pytest.raises(ValueError, match=f'{kind}.*whose forward pass does more than convolve'):
        plugged(dict(at='layer1', layer=SCALED), conv_cfg=dict(type=kind))
