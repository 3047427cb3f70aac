"""Attended convolutions and their blocks, through the list of checks and some of their own."""

import copy

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_tester import LayerTester, weights_of
from torch import nn

from kronattn_mm.layers import (
    CondConv2d,
    DynamicConv2d,
    ShiftBalance2d,
    ShiftBalanceConv2d,
    SqueezeExcite2d,
    SqueezeExciteConv2d,
)
from kronattn_mm.ops import use_backend

GEOMETRIES = [
    dict(out_channels=4, kernel_size=1),
    dict(out_channels=6, kernel_size=3, padding=1, stride=2, groups=6, bias=False),
    dict(out_channels=4, kernel_size=(3, 2), padding=(2, 1), dilation=(2, 1), groups=2),
    dict(out_channels=3, kernel_size=3, padding=1, padding_mode='reflect', bias=False),
    dict(out_channels=3, kernel_size=3, padding=1, padding_mode='circular', stride=(1, 2)),
    dict(out_channels=2, kernel_size=1, stride=2, padding=1),
]
BRANCH_BAD_ARGUMENTS = [
    (
        dict(gate='swish'),
        ValueError,
        "gate must be one of 'tanh', 'sigmoid', 'softmax', 'relu', None, got 'swish'",
    ),
    (dict(norm='group_norm'), ValueError, "'batch_norm', 'layer_norm', None, got 'group_norm'"),
    (dict(dropout=1.0), ValueError, 'dropout must be at least 0 and below 1, got 1.0'),
    (dict(norm_eval=1), TypeError, 'norm_eval must be True or False, got 1'),
    (dict(in_channels=0), ValueError, 'in_channels must be at least 1, got 0'),
]
CONV_BAD_ARGUMENTS = [
    (dict(groups=4), ValueError, 'in_channels must be divisible by groups'),
    (dict(bias='auto'), TypeError, "bias must be True or False, got 'auto'"),
    (dict(padding_mode='zero'), ValueError, 'padding_mode'),
    (dict(out_channels=1.5), TypeError, 'out_channels must be an integer, got 1.5'),
    (dict(hiden_ratio=1), TypeError, 'hiden_ratio'),
]


def geometry_of(conv):
    return dict(
        stride=conv.stride,
        padding=conv.padding,
        dilation=conv.dilation,
        groups=conv.groups,
        mode=conv.padding_mode,
    )


def child_weights(weights, prefix):
    return {key[len(prefix) :]: value for key, value in weights.items() if key.startswith(prefix)}


class BranchTester(LayerTester):
    """The list of checks, for layers whose branch has norms and is not zero at the start."""

    traced = 2
    shapes = [(5, 7), (8, 6), (4, 4)]

    def build_active(self, variant=None):
        layer = self.build(variant)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.normal_(std=0.5)
            for module in layer.modules():
                if isinstance(module, nn.BatchNorm1d):
                    module.running_mean.normal_()
                    module.running_var.uniform_(0.5, 2.0)
        return layer

    def branch(self, weights, layer, image, prefix='attention.'):
        branch = layer.attention if prefix else layer
        kind = {nn.BatchNorm1d: 'batch_norm', nn.LayerNorm: 'layer_norm', nn.Identity: None}
        return reference.attention_branch(
            image, child_weights(weights, prefix), branch.gate, kind[type(branch.norm1)]
        )

    def test_every_parameter_gets_a_gradient(self):
        for variant in self.variants:
            layer = self.build_active(variant).double()
            x = self.input(batch=5, dtype=torch.float64).requires_grad_()
            out = layer(x)
            (out * torch.randn_like(out)).sum().backward()
            assert x.grad.abs().max() > 0
            for name, parameter in layer.named_parameters():
                assert parameter.grad is not None, (variant, name)
                assert parameter.grad.abs().max() > 1e-9, (variant, name)

    def test_gradcheck(self):
        for variant in self.variants:
            layer = self.build_active(variant).double().eval()
            x = self.input((3, 3), 2, torch.float64)
            names = [name for name, _ in layer.named_parameters()]

            def run(x, *values, layer=layer, names=names):
                return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), x)

            values = [
                parameter.detach().clone().requires_grad_() for parameter in layer.parameters()
            ]
            assert torch.autograd.gradcheck(run, (x.requires_grad_(), *values)), variant

    def test_first_step_from_zero_moves_the_layer(self):
        layer = self.build()
        x = self.input(batch=4)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        before = layer.eval()(x)
        layer.train()
        for _ in range(2):
            optimizer.zero_grad()
            ((layer(x) - 1) ** 2).mean().backward()
            optimizer.step()
        assert not torch.allclose(layer.eval()(x), before)

    def test_copies_are_independent(self):
        layer = self.build_active().eval()
        self.build_active = lambda: layer  # in training its statistics would move
        super().test_copies_are_independent()

    def test_state_dict_round_trip(self):
        layer, other = self.build_active().eval(), self.build().eval()
        other.load_state_dict(layer.state_dict())
        x = self.input()
        assert torch.equal(layer(x), other(x))

    @pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
    def test_autocast(self, dtype):
        for variant in self.variants:
            layer = self.build_active(variant).eval()
            x = self.input(batch=4).requires_grad_()
            wanted = layer(x)
            with torch.autocast('cpu', dtype=dtype):
                actual = layer(x)
            error = (actual.float() - wanted).abs().max() / wanted.abs().max()
            assert error < 32 * torch.finfo(dtype).eps, (variant, float(error))
            actual.float().sum().backward()
            assert all(parameter.grad.dtype == torch.float32 for parameter in layer.parameters())
            assert actual.dtype == self.dtype_under_autocast(layer, dtype, x)

    def dtype_under_autocast(self, layer, dtype, x):
        return dtype

    def test_empty_batch(self):
        for training in (True, False):
            layer = self.build_active().train(training)
            assert layer(self.input(batch=0)).shape[0] == 0

    def test_meta_device(self):
        x = torch.zeros(1, self.in_channels, 1000, 1000, device='meta')
        assert self.build().to('meta').eval()(x).shape[0] == 1

    def test_compile_fullgraph(self):
        for variant in self.traced_variants:
            for training in (False, True):
                layer = self.build_active(variant).train(training)
                compiled = torch.compile(
                    copy.deepcopy(layer), fullgraph=True, backend='aot_eager', dynamic=True
                )
                for shape in (self.shapes[0], self.shapes[-1]):
                    x = self.input(shape)
                    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-5)
                torch.compiler.reset()

    def test_channels_last(self):
        layer = self.build_active().eval()
        x = self.input()
        torch.testing.assert_close(
            layer(x.contiguous(memory_format=torch.channels_last)), layer(x), rtol=1e-5, atol=1e-6
        )


class AttendedConvTester(BranchTester):
    """For convolutions: every geometry, the keys of a plain one, and folding."""

    keys_of_conv = ['weight', 'bias']

    def build(self, variant=None, **changes):
        variant = {**GEOMETRIES[0], **(self.variants[0] if variant is None else variant)}
        return super().build(variant, **changes)

    def plain(self, layer):
        conv = nn.Conv2d(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.groups,
            layer.bias is not None,
            layer.padding_mode,
        ).to(layer.weight.dtype)
        conv.load_state_dict(
            {key: value for key, value in layer.state_dict().items() if key in self.keys_of_conv}
        )
        return conv

    def trunk(self, weights, layer, image):
        return reference.convolution(
            image, weights['weight'], weights.get('bias'), **geometry_of(layer)
        )

    def test_identity_at_init(self):
        pytest.skip('for a convolution see test_plain_weights_load')

    def test_init_weights_restores_the_identity(self):
        pytest.skip('convolutions leave their initialisation to the network, as plain ones do')

    def test_is_no_conv2d_but_initialised_as_one(self):
        from mmengine.model.weight_init import NormalInit

        layer = self.build()
        assert not isinstance(layer, nn.Conv2d)
        NormalInit(std=1e-6, layer='Conv2d')(layer)
        assert layer.weight.abs().max() < 1e-4

    def test_plain_weights_load(self):
        for geometry in GEOMETRIES:
            layer = self.build(geometry)
            plain = nn.Conv2d(self.in_channels, **geometry)
            result = layer.load_state_dict(plain.state_dict(), strict=False)
            assert not result.unexpected_keys
            assert all(key.startswith('attention.') for key in result.missing_keys)
            assert torch.equal(layer.weight, plain.weight)

    def test_folded_norm(self):
        """Convolution, branch and batch norm as one, against the three one after the other."""
        for variant in self.variants:
            layer = self.build_active(variant).double().eval()
            norm = nn.BatchNorm2d(layer.out_channels).double().eval()
            with torch.no_grad():
                norm.running_mean.normal_()
                norm.running_var.uniform_(0.5, 2.0)
                norm.weight.normal_()
                norm.bias.normal_()
            x = self.input(dtype=torch.float64)
            wanted = norm(layer(x))
            layer.fold_norm(norm)
            assert not any(isinstance(child, nn.BatchNorm1d) for child in layer.modules())
            torch.testing.assert_close(layer(x), wanted, rtol=1e-10, atol=1e-10)
            with torch.no_grad():
                one_by_one = torch.cat([layer(image[None]) for image in x])
            torch.testing.assert_close(one_by_one, wanted, rtol=1e-10, atol=1e-10)
            with pytest.raises(ValueError, match='a norm of 77 channels does not follow'):
                layer.fold_norm(nn.BatchNorm2d(77))
            with pytest.raises(ValueError, match='keeps no running statistics'):
                layer.fold_norm(nn.BatchNorm2d(layer.out_channels, track_running_stats=False))

    def test_repr_shows_the_arguments(self):
        text = repr(self.build(dict(kernel_size=3, bias=False)))
        assert f'{self.layer_class.__name__}(' in text
        assert f'{self.in_channels}, 4, kernel_size=(3, 3), stride=(1, 1), bias=False' in text

    def test_tools_that_fuse_leave_it_alone(self):
        from mmcv.cnn import ConvModule, fuse_conv_bn

        block = ConvModule(self.in_channels, 4, 1, norm_cfg=dict(type='BN'))
        block.conv = self.build(dict(bias=False))
        chain = nn.Sequential(
            nn.Conv2d(self.in_channels, self.in_channels, 1),
            nn.BatchNorm2d(self.in_channels),
            block,
        )
        x = self.input()
        chain(x)
        chain.eval()
        wanted = chain(x)
        torch.testing.assert_close(fuse_conv_bn(chain)(x), wanted)

    def test_sync_batch_norm_and_back(self):
        from mmengine.model import revert_sync_batchnorm

        layer = self.build_active().eval()
        x = self.input()
        wanted = layer(x)
        synced = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(layer))
        torch.testing.assert_close(revert_sync_batchnorm(synced)(x), wanted)

    @pytest.mark.parametrize('bias', [True, False])
    @pytest.mark.parametrize('batch', [1, 3])
    def test_pointwise_on_large_maps(self, bias, batch, monkeypatch):
        """Where a matrix product takes the convolution's place, nothing changes but rounding."""
        monkeypatch.setattr(torch, 'get_num_threads', lambda: 2)
        layer = self.build_active(dict(out_channels=4, kernel_size=1, bias=bias)).double().eval()
        x = self.input((12, 13), batch, torch.float64)
        wanted = np.stack([self.reference(layer, image) for image in x.numpy()])
        with torch.no_grad():
            actual = layer(x).numpy()
        assert np.abs(actual - wanted).max() < 1e-12 * np.abs(wanted).max()
        weight = torch.randn(batch, 4, 12, 13)
        results = {}
        for name, dtype in (('reference', torch.float64), ('auto', torch.float32)):
            layer, data = layer.to(dtype), x.detach().clone().to(dtype).requires_grad_()
            with use_backend(name):
                (layer(data) * weight.to(dtype)).sum().backward()
            results[name] = [data.grad.double()] + [p.grad.double() for p in layer.parameters()]
            layer.zero_grad(set_to_none=True)
        for exact, single in zip(results['reference'], results['auto'], strict=True):
            assert (exact - single).abs().max() <= 1e-4 * exact.abs().max()

    @pytest.mark.parametrize('geometry', GEOMETRIES[1:])
    def test_every_geometry(self, geometry):
        layer = self.build_active(geometry).double().eval()
        x = self.input((6, 5), dtype=torch.float64)
        wanted = np.stack([self.reference(layer, image) for image in x.numpy()])
        with torch.no_grad():
            np.testing.assert_allclose(layer(x).numpy(), wanted, rtol=1e-10, atol=1e-11)


class TestShiftBalanceConv2d(AttendedConvTester):
    layer_class = ShiftBalanceConv2d
    variants = [
        dict(),
        dict(gate='sigmoid', lambda_per='layer', kernel_size=3, bias=False),
        dict(gate=None, norm=None),
        dict(gate='softmax', norm='layer_norm'),
        dict(gate='relu', hidden_ratio=2.0),
    ]
    keys = [
        'weight',
        'bias',
        'attention.lambda_',
        'attention.fc1.weight',
        *[
            f'attention.norm1.{part}'
            for part in ('weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked')
        ],
        'attention.fc2.weight',
        *[
            f'attention.norm2.{part}'
            for part in ('weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked')
        ],
    ]
    bad_arguments = [
        *[
            (dict(GEOMETRIES[0], **arguments), *rest)
            for arguments, *rest in BRANCH_BAD_ARGUMENTS + CONV_BAD_ARGUMENTS
        ],
        (dict(GEOMETRIES[0], lambda_init=float('nan')), ValueError, 'lambda_init must be finite'),
        (dict(GEOMETRIES[0], lambda_init='0.1'), TypeError, "lambda_init must be a number, got '"),
        (dict(GEOMETRIES[0], lambda_per='pixel'), ValueError, "'channel', 'layer', got 'pixel'"),
        (dict(GEOMETRIES[0], hidden_ratio=0), ValueError, 'hidden_ratio must be above 0, got 0'),
        (dict(GEOMETRIES[0], place='after'), ValueError, "'before_norm', 'after_norm', got 'aft"),
    ]

    def reference(self, layer, image):
        weights = weights_of(layer)
        attention = self.branch(weights, layer, image)
        return (
            self.trunk(weights, layer, image)
            + (weights['attention.lambda_'] * attention)[:, None, None]
        )

    def test_lambda_of_zero_is_the_plain_convolution(self):
        for geometry in GEOMETRIES:
            layer = self.build(dict(geometry, lambda_init=0.0))
            x = self.input()
            assert torch.equal(layer(x), self.plain(layer)(x)), geometry
            # and it does not stay there
            layer(x).square().sum().backward()
            assert layer.attention.lambda_.grad.abs().max() > 0

    def test_lambda_of_zero_is_the_plain_convolution_on_large_maps(self, monkeypatch):
        monkeypatch.setattr(torch, 'get_num_threads', lambda: 2)
        layer = self.build(dict(lambda_init=0.0))
        x = self.input((16, 16))
        assert torch.equal(layer(x), self.plain(layer)(x))

    def test_the_shift_takes_no_pass_of_its_own(self, monkeypatch):
        monkeypatch.setattr(torch, 'get_num_threads', lambda: 2)  # one thread convolves
        layer = self.build(dict(bias=False)).eval()
        for shape, calls in (((16, 16), 0), ((5, 5), 1)):
            with torch.profiler.profile() as profile, torch.no_grad():
                layer(self.input(shape))
            counts = {event.key: event.count for event in profile.key_averages()}
            assert counts.get('aten::add_', 0) == calls
            assert counts.get('aten::conv2d', 0) == calls
        with use_backend('reference'), torch.profiler.profile() as profile, torch.no_grad():
            layer(self.input((16, 16)))
        assert 'aten::conv2d' in {event.key for event in profile.key_averages()}

    def test_lambda_starts_where_it_is_told(self):
        assert torch.equal(self.build().attention.lambda_.detach(), torch.full((4,), 0.1))
        assert self.build(dict(lambda_per='layer', lambda_init=-2)).attention.lambda_.item() == -2

    @pytest.mark.parametrize(
        'channels, groups, hidden',
        [(6, 6, 1), (96, 96, 16), (96, 1, 96), (96, 2, 96), (1, 1, 1), (5, 5, 1), (13, 13, 2)],
    )
    def test_hidden_units_by_rule(self, channels, groups, hidden):
        conv = ShiftBalanceConv2d(channels, channels, 3, groups=groups)
        assert conv.attention.hidden_channels == hidden

    def test_depthwise_ratio_for_six_wide_bottlenecks_is_exact(self):
        for channels in range(6, 2000, 6):
            conv = ShiftBalanceConv2d(channels, channels, 1, groups=channels)
            assert conv.attention.hidden_channels == channels // 6

    def test_dropout_is_in_the_hidden_layer(self):
        layer = self.build(dict(dropout=0.5, hidden_ratio=50.0)).train()
        x = self.input()
        assert not torch.equal(layer(x), layer(x))
        assert torch.equal(layer.eval()(x), layer(x))

    def test_after_the_norm_needs_plugged(self):
        with pytest.raises(RuntimeError, match=r"place='after_norm'.*kronattn_mm.Plugged"):
            self.build(dict(place='after_norm'))(self.input())


class TestSqueezeExciteConv2d(AttendedConvTester):
    layer_class = SqueezeExciteConv2d
    variants = [
        dict(),
        dict(gate='tanh', kernel_size=3, bias=False),
        dict(gate=None, norm=None),
        dict(gate='softmax', norm='layer_norm'),
        dict(gate='relu'),
    ]
    keys = [key for key in TestShiftBalanceConv2d.keys if key != 'attention.lambda_']
    bad_arguments = [
        (dict(GEOMETRIES[0], **arguments), *rest)
        for arguments, *rest in BRANCH_BAD_ARGUMENTS + CONV_BAD_ARGUMENTS
    ]

    def reference(self, layer, image):
        weights = weights_of(layer)
        return self.trunk(weights, layer, image) * self.branch(weights, layer, image)[:, None, None]


class MixedConvTester(AttendedConvTester):
    def shares(self, weights, layer, average):
        raise NotImplementedError

    def reference(self, layer, image):
        weights = weights_of(layer)
        shares = self.shares(weights, layer, image.mean(axis=(1, 2)))
        out = 0.0
        for number, share in enumerate(shares):
            prefix = '' if number == 0 else f'attention.kernels.{number - 1}.'
            bias = weights.get(f'{prefix}bias')
            out = out + share * reference.convolution(
                image, weights[f'{prefix}weight'], bias, **geometry_of(layer)
            )
        return out

    def test_batched_equals_one_by_one(self):
        for geometry in GEOMETRIES:
            layer = self.build_active(geometry).double()
            for batch in (1, 2, 5):
                x = self.input((7, 9), batch, torch.float64)
                one_by_one = torch.cat([layer(image[None]) for image in x])
                torch.testing.assert_close(layer(x), one_by_one, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize('geometry', GEOMETRIES)
    @pytest.mark.parametrize('threads', [1, 2])
    def test_one_image_at_inference(self, geometry, threads, monkeypatch):
        """Other operators, the same result; hooks, other dtypes and empty batches as ever."""
        monkeypatch.setattr(torch, 'get_num_threads', lambda: threads)
        layer = self.build_active(dict(geometry, bias=False)).double().eval()
        x = self.input((13, 12), 1, torch.float64)
        wanted = self.reference(layer, x[0].numpy())
        with torch.no_grad():
            actual = layer(x)
            np.testing.assert_allclose(actual[0].numpy(), wanted, rtol=1e-11, atol=1e-12)
            told = []
            hook = layer.attention.register_forward_hook(lambda *_: told.append('shares'))
            assert torch.allclose(layer(x), actual, rtol=1e-12) and told == ['shares']
            hook.remove()
            with torch.inference_mode():
                assert torch.allclose(layer(x), actual, rtol=1e-12)
            with use_backend('reference'):
                assert torch.allclose(layer(x), actual, rtol=1e-12)
            assert layer(x[:0]).shape[0] == 0
            assert layer.bfloat16()(x.bfloat16()).dtype == torch.bfloat16

    @pytest.mark.parametrize('geometry', GEOMETRIES)
    @pytest.mark.parametrize('size', [(17, 16), (2, 3)])
    @pytest.mark.parametrize('folded', [False, True])
    @pytest.mark.parametrize('memory_format', [torch.contiguous_format, torch.channels_last])
    def test_one_image_and_the_norm_after_it(self, geometry, size, folded, memory_format):
        """In the kernel where the map is large, after the convolution where it is small."""
        layer = self.build_active(dict(geometry, bias=False)).double().eval()
        norms = [nn.BatchNorm2d(layer.out_channels).double().eval() for _ in range(2)]
        for norm in norms:
            for value in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
                nn.init.uniform_(value, 0.5, 2.0)
        if folded:
            layer.fold_norm(norms[1])
        x = self.input(size, 1, torch.float64).to(memory_format=memory_format)
        before = {name: value.clone() for name, value in layer.state_dict().items()}
        with torch.no_grad():
            actual = layer.convolve_one_image(x, layer.kernels_of_one_image(x), norms[0])
            with use_backend('reference'):
                assert layer.kernels_of_one_image(x) is None
                wanted = norms[0](layer(x))
        torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12, check_stride=False)
        assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())

    def test_one_convolution_for_the_batch(self):
        layer = self.build_active(GEOMETRIES[1])
        with torch.profiler.profile() as profile:
            layer(self.input(batch=4))
        assert (
            sum(event.count for event in profile.key_averages() if event.key == 'aten::conv2d') == 1
        )

    def test_kernels_are_initialised_with_the_network(self):
        from mmengine.model.weight_init import NormalInit

        layer = self.build()
        NormalInit(std=1e-6, layer='Conv2d')(layer)
        assert all(kernel.weight.abs().max() < 1e-4 for kernel in layer.attention.kernels)

    def test_own_weights_are_not_taken_for_plain_ones(self):
        layer, other = self.build_active(), self.build()
        other.load_state_dict(layer.state_dict())
        assert torch.equal(other.attention.kernels[0].weight, layer.attention.kernels[0].weight)
        assert not torch.equal(other.attention.kernels[0].weight, other.weight)


class _Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


class TestDynamicConv2d(MixedConvTester):
    layer_class = DynamicConv2d
    variants = [
        dict(),
        dict(num_kernels=2, kernel_size=3, bias=False, temperature=1.0),
        dict(hidden_ratio=1.0),
    ]
    keys = [
        'weight',
        'bias',
        'attention.temperature',
        *[f'attention.kernels.{k}.{part}' for k in range(3) for part in ('weight', 'bias')],
        'attention.fc1.weight',
        'attention.fc2.weight',
        'attention.fc2.bias',
    ]
    bad_arguments = [
        *[(dict(GEOMETRIES[0], **arguments), *rest) for arguments, *rest in CONV_BAD_ARGUMENTS],
        (dict(GEOMETRIES[0], num_kernels=1), ValueError, 'num_kernels must be at least 2, got 1'),
        (dict(GEOMETRIES[0], temperature=0), ValueError, 'temperature must be above 0, got 0'),
        (dict(GEOMETRIES[0], hidden_ratio=-1), ValueError, 'hidden_ratio must be above 0'),
    ]

    def shares(self, weights, layer, average):
        hidden = np.maximum(weights['attention.fc1.weight'] @ average, 0)
        logits = weights['attention.fc2.weight'] @ hidden + weights['attention.fc2.bias']
        return reference.softmax(logits / weights['attention.temperature'])

    def test_starts_as_the_plain_convolution(self):
        for geometry in GEOMETRIES:
            layer = self.build(geometry)
            plain = nn.Conv2d(self.in_channels, **geometry)
            layer.load_state_dict(plain.state_dict(), strict=False)
            x = self.input()
            torch.testing.assert_close(layer(x), plain(x), rtol=1e-5, atol=1e-6)

    def test_everybody_who_waits_for_a_call_of_the_branch_gets_it(self):
        layer = self.build_active(dict(bias=False)).eval()
        x, told = self.input(batch=1), []
        with torch.no_grad():
            wanted = layer(x)
            for part in (layer.attention.fc1, layer.attention.fc2):
                part.register_forward_pre_hook(lambda module, inputs: told.append(module))
            torch.testing.assert_close(layer(x), wanted)
            assert told == [layer.attention.fc1, layer.attention.fc2]
            layer.attention.fc2 = torch.nn.utils.parametrizations.weight_norm(layer.attention.fc2)
            torch.testing.assert_close(layer(x), wanted)

    def test_parametrized_kernels_are_read(self):
        layer = self.build_active(dict(bias=False)).eval()
        x = self.input(batch=1)
        with torch.no_grad():
            wanted = 2 * layer(x)
            for conv in (layer, *layer.attention.kernels):
                torch.nn.utils.parametrize.register_parametrization(conv, 'weight', _Doubled())
            torch.testing.assert_close(layer(x), wanted)

    def test_temperature_is_in_the_checkpoint(self):
        layer, other = self.build_active(), self.build()
        layer.attention.temperature.fill_(1.0)
        other.load_state_dict(layer.state_dict())
        x = self.input()
        assert torch.equal(layer(x), other(x))


class TestCondConv2d(MixedConvTester):
    layer_class = CondConv2d
    variants = [dict(), dict(num_kernels=8, kernel_size=3, bias=False)]
    keys = [
        'weight',
        'bias',
        *[f'attention.kernels.{k}.{part}' for k in range(3) for part in ('weight', 'bias')],
        'attention.fc.weight',
        'attention.fc.bias',
    ]
    bad_arguments = TestDynamicConv2d.bad_arguments[: len(CONV_BAD_ARGUMENTS) + 1]

    def shares(self, weights, layer, average):
        return reference.GATES['sigmoid'](
            weights['attention.fc.weight'] @ average + weights['attention.fc.bias']
        )

    def test_starts_near_the_plain_convolution(self):
        layer = self.build()
        plain = nn.Conv2d(self.in_channels, **GEOMETRIES[0])
        layer.load_state_dict(plain.state_dict(), strict=False)
        shares = layer.attention(torch.zeros(1, self.in_channels, 2, 2))
        torch.testing.assert_close(shares, torch.full((1, 4), 0.25))


class BlockTester(BranchTester):
    def dtype_under_autocast(self, layer, dtype, x):
        return torch.float32  # of the input, as a residual has it

    def test_init_weights_restores_the_identity(self):
        pytest.skip('the constructor is all the initialisation there is')


class TestShiftBalance2d(BlockTester):
    layer_class = ShiftBalance2d
    variants = [
        dict(),
        dict(gate=None, norm=None, hidden_channels=3),
        dict(gate='sigmoid', lambda_per='layer', norm='layer_norm'),
    ]
    keys = [key.removeprefix('attention.') for key in TestShiftBalanceConv2d.keys[2:]]
    bad_arguments = [
        *BRANCH_BAD_ARGUMENTS,
        (dict(hidden_channels=0), ValueError, 'hidden_channels must be at least 1'),
    ]

    def reference(self, layer, image):
        weights = weights_of(layer)
        return image + (weights['lambda_'] * self.branch(weights, layer, image, ''))[:, None, None]

    def test_identity_at_init(self):
        x = self.input()
        assert torch.equal(self.build(dict(lambda_init=0.0))(x), x)


class TestSqueezeExcite2d(BlockTester):
    layer_class = SqueezeExcite2d
    variants = [dict(), dict(norm='batch_norm', gate='tanh'), dict(bias=True, hidden_channels=3)]
    keys = ['fc1.weight', 'fc2.weight']
    bad_arguments = BRANCH_BAD_ARGUMENTS

    def reference(self, layer, image):
        return image * self.branch(weights_of(layer), layer, image, '')[:, None, None]

    def test_identity_at_init(self):
        pytest.skip('scaled attention starts at about one half of its input')


class TestNormOfTheBranch:
    """One image in a batch, and backbones that keep their norms in eval mode."""

    def build(self, **arguments):
        torch.manual_seed(0)
        return ShiftBalanceConv2d(6, 4, 1, **arguments)

    def test_one_image_moves_the_statistics_towards_it(self):
        conv = self.build().train()
        x = torch.randn(1, 6, 5, 7)
        norm = conv.attention.norm1
        hidden = conv.attention.fc1(x.mean((2, 3)))[0].detach()
        conv(x).sum().backward()
        torch.testing.assert_close(norm.running_mean, 0.1 * hidden)
        torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * hidden.square())
        assert norm.num_batches_tracked == 1
        assert conv.attention.fc1.weight.grad.abs().max() > 0

    def test_one_image_at_a_time_finds_the_statistics(self):
        torch.manual_seed(1)
        conv = self.build().train()
        hidden = []
        with torch.no_grad():
            for _ in range(600):
                x = 3 * torch.randn(1, 6, 2, 2) + 1
                hidden.append(conv.attention.fc1(x.mean((2, 3)))[0])
                conv(x)
        norm = conv.attention.norm1
        hidden = torch.stack(hidden)
        assert (norm.running_mean - hidden.mean(0)).abs().max() < hidden.std(0).max()
        ratio = norm.running_var / hidden.var(0)
        assert 0.3 < ratio.min() and ratio.max() < 3

    def test_one_image_in_training_and_in_inference_is_one_function(self):
        conv = self.build().train()
        x = torch.randn(1, 6, 5, 7)
        for _ in range(20):
            trained = conv(x)
        torch.testing.assert_close(conv.eval()(x), trained)

    def test_two_steps_before_a_backward(self):
        conv = self.build().train()
        first, second = (conv(torch.randn(1, 6, 2, 2)) for _ in range(2))
        (first + second).sum().backward()

    def test_norm_eval_of_the_network_does_not_reach_the_branch(self):
        from mmengine.registry import MODELS

        import kronattn_mm.registry  # noqa: F401

        model = MODELS.build(
            dict(
                type='mmdet.MobileNetV2',
                norm_eval=True,
                conv_cfg=dict(type='kronattn_mm.ShiftBalanceConv2d'),
            )
        )
        model.train()
        conv = model.layer2[0].expand_conv.conv
        assert not conv.attention.norm1.training
        model(torch.randn(2, 3, 64, 64))
        assert conv.attention.norm1.num_batches_tracked == 1
        assert model.layer2[0].expand_conv.bn.num_batches_tracked == 0
        model.eval()
        model(torch.randn(2, 3, 64, 64))
        assert conv.attention.norm1.num_batches_tracked == 1

    def test_held_norms_stay(self):
        for conv in (self.build(norm_eval=True).train(), self.build().train()):
            if not conv.attention.norm_eval:
                conv.attention.requires_grad_(False)
            conv(torch.randn(3, 6, 2, 2))
            assert conv.attention.norm1.num_batches_tracked == 0
            assert torch.equal(conv.attention.norm1.running_mean, torch.zeros(4))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_geometry_keeps_the_weights_of_a_plain_convolution(data):
    groups = data.draw(st.sampled_from([1, 2, 3]))
    geometry = dict(
        in_channels=groups * data.draw(st.integers(1, 3)),
        out_channels=groups * data.draw(st.integers(1, 3)),
        kernel_size=data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        stride=data.draw(st.integers(1, 3)),
        padding=data.draw(st.integers(0, 2)),
        dilation=data.draw(st.integers(1, 2)),
        groups=groups,
        bias=data.draw(st.booleans()),
        padding_mode=data.draw(st.sampled_from(['zeros', 'circular', 'replicate'])),
    )
    plain = nn.Conv2d(**geometry)
    x = torch.randn(
        data.draw(st.integers(1, 3)),
        geometry['in_channels'],
        data.draw(st.integers(5, 8)),
        data.draw(st.integers(5, 8)),
    )
    wanted = plain(x)
    for cls, arguments in ((ShiftBalanceConv2d, dict(lambda_init=0.0)), (DynamicConv2d, {})):
        conv = cls(**geometry, **arguments)
        conv.load_state_dict(plain.state_dict(), strict=False)
        torch.testing.assert_close(conv(x), wanted, rtol=1e-4, atol=1e-5)
