"""Sums after the norm, and folding batch norms into attended convolutions."""

import copy

import pytest
import torch
from mmengine.registry import MODELS
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import kronattn_mm.registry  # noqa: F401
from kronattn_mm.plugging import fused, unplug

TYPES = ['ShiftBalanceConv2d', 'SqueezeExciteConv2d', 'DynamicConv2d', 'CondConv2d']


def plugged(
    kind='ShiftBalanceConv2d', base='mmdet.MobileNetV2', at='layer*', arguments=None, **layer
):
    torch.manual_seed(0)
    return MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base=base,
            convs=[dict(at=at, layer=dict(type=f'kronattn_mm.{kind}', **layer))],
            **(arguments or {}),
        )
    )


def with_statistics(model):
    """Norms that have seen something, weights that do something."""
    model.train()
    model(torch.randn(4, 3, 64, 64))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(std=0.1)
    model.eval()
    return model


class TestAfterNorm:
    def test_between_norm_and_activation(self):
        model = with_statistics(plugged(place='after_norm'))
        block = model.layer2[0]
        x = torch.randn(2, 16, 9, 9)
        module = block.expand_conv
        conv = module.conv
        branch = conv.attention.lambda_ * super(type(conv.attention), conv.attention).forward(x)
        wanted = module.activate(module.bn(conv.trunk(x)) + branch[:, :, None, None])
        assert torch.equal(module(x), wanted)
        before = with_statistics(plugged()).layer2[0].expand_conv
        assert not torch.allclose(before(x), wanted)

    def test_without_activation(self):
        module = with_statistics(plugged(place='after_norm')).layer1[0].linear_conv
        x = torch.randn(2, 32, 5, 5)
        wanted = module.bn(module.conv.trunk(x)) + module.conv.attention(x)[:, :, None, None]
        assert torch.equal(module(x), wanted)

    def test_module_told_not_to_activate_or_normalise(self):
        module = with_statistics(plugged(place='after_norm')).layer2[0].expand_conv
        x = torch.randn(2, 16, 9, 9)
        shift = module.conv.attention(x)[:, :, None, None]
        trunk = module.conv.trunk(x)
        for call in (dict(activate=False), dict(activate=False, norm=False), dict(norm=False)):
            wanted = trunk if 'norm' in call else module.bn(trunk)
            wanted = wanted + shift
            if 'activate' not in call:
                wanted = module.activate(wanted)
            assert torch.equal(module(x, **call), wanted), call
            assert torch.equal(module(x=x, **call), wanted), call
            arguments = (call.get('activate', True), call.get('norm', True))
            assert torch.equal(module(x, *arguments), wanted), call

    def test_lambda_of_zero_is_the_plain_network(self):
        model = plugged(place='after_norm', lambda_init=0.0)
        plain = MODELS.build(dict(type='mmdet.MobileNetV2'))
        assert not model.load_state_dict(plain.state_dict(), strict=False).unexpected_keys
        model.eval(), plain.eval()
        x = torch.randn(1, 3, 64, 64)
        assert all(torch.equal(a, b) for a, b in zip(model(x), plain(x), strict=True))

    @pytest.mark.parametrize('kind', TYPES[:2])
    def test_copies_sync_batch_norm_and_fusing_keep_it(self, kind):
        from mmcv.cnn import fuse_conv_bn
        from mmengine.model import revert_sync_batchnorm

        model = with_statistics(plugged(kind, place='after_norm'))
        x = torch.randn(2, 3, 64, 64)
        wanted = model(x)
        copied = copy.deepcopy(model)
        for changed in (
            copied,
            revert_sync_batchnorm(nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))),
            fuse_conv_bn(copy.deepcopy(model)),
            fused(model),
        ):
            for actual, expected in zip(changed(x), wanted, strict=True):
                torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
        with torch.no_grad():
            for parameter in copied.parameters():
                parameter.zero_()
        assert all(torch.equal(a, b) for a, b in zip(model(x), wanted, strict=True))

    def test_trains(self):
        model = plugged(place='after_norm')
        model.train()
        sum(out.square().mean() for out in model(torch.randn(2, 3, 64, 64))).backward()
        assert all(
            parameter.grad is not None
            for name, parameter in model.named_parameters()
            if '.attention.' in name
        )

    def test_taken_out_again(self):
        model = plugged(place='after_norm')
        plain = MODELS.build(dict(type='mmdet.MobileNetV2'))
        plain.load_state_dict(model.state_dict(), strict=False)
        unplug(model)
        for a, b in zip(model.modules(), plain.modules(), strict=True):
            assert type(a) is type(b) and a.__dict__.keys() == b.__dict__.keys()
            assert getattr(a, 'with_activation', 0) == getattr(b, 'with_activation', 0)
        model.eval(), plain.eval()
        x = torch.randn(1, 3, 64, 64)
        assert all(torch.equal(a, b) for a, b in zip(model(x), plain(x), strict=True))

    def test_needs_a_conv_module(self):
        with pytest.raises(ValueError, match="'conv1' of a BasicBlock"):
            plugged(
                base='mmdet.ResNet',
                at='layer1.0.conv1',
                place='after_norm',
                arguments=dict(depth=18),
            )


class TestFused:
    @pytest.mark.parametrize('kind', TYPES)
    def test_equals_the_unfused(self, kind):
        model = with_statistics(plugged(kind))
        x = torch.randn(2, 3, 64, 64)
        copied = fused(model, x)
        assert not any(isinstance(module, _BatchNorm) for module in copied.modules())
        for actual, wanted in zip(copied(x), model(x), strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-4)
        assert sum(isinstance(module, _BatchNorm) for module in model.modules()) >= 52
        assert not any(parameter.requires_grad for parameter in copied.parameters())

    def test_norms_beside_the_convolution(self):
        model = with_statistics(plugged(base='mmdet.ResNet', at='layer*', arguments=dict(depth=18)))
        copied = fused(model, torch.randn(1, 3, 64, 64))
        assert not any(isinstance(module, _BatchNorm) for module in copied.modules())

    def test_blocks(self):
        torch.manual_seed(0)
        layer = dict(type='kronattn_mm.ShiftBalance2d')
        model = with_statistics(
            MODELS.build(
                dict(
                    type='kronattn_mm.Plugged',
                    base='mmdet.MobileNetV2',
                    insert=[dict(at='layer4', layer=layer)],
                )
            )
        )
        copied = fused(model, torch.randn(1, 3, 64, 64))
        assert not any(isinstance(module, _BatchNorm) for module in copied.modules())

    def test_fused_weights_go_to_a_fused_network(self):
        model = with_statistics(plugged('SqueezeExciteConv2d'))
        x = torch.randn(1, 3, 64, 64)
        copied, other = fused(model), fused(plugged('SqueezeExciteConv2d'))
        other.load_state_dict(copied.state_dict())
        assert all(torch.equal(a, b) for a, b in zip(other(x), copied(x), strict=True))

    def test_order_of_calls_that_differs_is_found_out(self):
        class Crossed(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = MODELS.build(
                    dict(
                        type='kronattn_mm.ShiftBalanceConv2d',
                        in_channels=3,
                        out_channels=3,
                        kernel_size=1,
                    )
                )
                self.norm = nn.BatchNorm2d(3)

            def forward(self, x):
                return self.conv(self.norm(x))

        model = with_statistics(Crossed())
        with pytest.raises(RuntimeError, match='output 0 differs by .* after fusing'):
            fused(model, torch.randn(1, 3, 8, 8))

    def test_switched_off_is_refused(self):
        model = MODELS.build(
            dict(
                type='kronattn_mm.Plugged',
                base='mmdet.MobileNetV2',
                convs=[
                    dict(
                        at='layer1',
                        enabled=False,
                        layer=dict(type='kronattn_mm.ShiftBalanceConv2d'),
                    )
                ],
            )
        )
        with pytest.raises(ValueError, match='switched off or scaled'):
            fused(model)


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.chain = nn.Sequential(
            nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        )

    def forward(self, x):
        return self.chain(x)


def test_a_norm_that_fusing_would_give_to_another_convolution():
    with pytest.raises(
        ValueError,
        match="'2' of Sequential lies between the convolution '0' and the batch norm '3'",
    ):
        plugged(base=Chain, at='chain.2')
    plugged(base=Chain, at='chain')
    plugged(base=Chain, at='chain.0')
    layers = [dict(type=f'kronattn_mm.{kind}') for kind in TYPES[:2]]
    MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base=Chain,
            convs=[dict(at='chain.2', layer=layers[0]), dict(at='chain.0', layer=layers[1])],
        )
    )
