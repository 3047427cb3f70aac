"""LatentGNN and CGNL, with which the efficient-attention paper compares, against equations."""

import math

import numpy as np
import pytest
import torch
from layer_tester import LayerTester, weights_of

from kronattn_mm.layers import CGNL2d, LatentGNN2d
from kronattn_mm.ops import compact_non_local, latent_message_passing


def unit(row):
    """A vector divided by its length, or zeros."""
    return row / max(np.sqrt((row * row).sum()), 1e-12)


class BatchNormed:
    """A layer whose batch norms have seen something, and whose tests of gradients train them."""

    def build_active(self, variant=None):
        layer = super().build_active(variant)
        with torch.no_grad():
            for name, buffer in layer.named_buffers():
                if name.endswith('running_mean'):
                    buffer.normal_(std=0.3)
                elif name.endswith('running_var'):
                    buffer.uniform_(0.5, 2)
        return layer

    def build(self, variant=None, **changes):
        # statistics of batches make every position depend on every other; the list is about layers
        return super().build(variant, **changes).eval()


class TestLatentGNN2d(BatchNormed, LayerTester):
    layer_class = LatentGNN2d
    in_channels = 8
    variants = [
        dict(latent_channels=[5, 3], channel_stride=2),
        dict(latent_channels=4, mode='symmetric', channel_stride=4),
        dict(latent_channels=6, channel_stride=1),
    ]
    shapes = [(5, 7), (1, 1), (1, 6), (8, 3)]
    keys = [
        'gamma',
        *[
            f'{name}.{key}'
            for name in (
                'down_v2l',
                'down_l2v',
                'psi_v2l.0',
                'psi_v2l.1',
                'psi_l2v.0',
                'psi_l2v.1',
                'up',
            )
            for key in (
                '0.weight',
                '1.weight',
                '1.bias',
                '1.running_mean',
                '1.running_var',
                '1.num_batches_tracked',
            )
        ],
    ]
    bad_arguments = [
        (dict(channel_stride=3), ValueError, 'channel_stride=3 and in_channels=8'),
        (dict(latent_channels=0), ValueError, 'latent_channels must be at least 1, got 0'),
        (dict(latent_channels=[]), ValueError, 'at least one kernel'),
        (dict(latent_channels='100'), TypeError, "latent_channels must be an integer, got '100'"),
        (dict(mode='both'), ValueError, "'asymmetric', 'symmetric', got 'both'"),
        (dict(zero_init=1), TypeError, 'zero_init must be True or False'),
    ]

    def reference(self, layer, image):
        weights = weights_of(layer)
        rows = image.reshape(image.shape[0], -1).T

        def conv_norm(name, rows):
            weight = weights[f'{name}.0.weight'][:, :, 0, 0]
            mean, var = weights[f'{name}.1.running_mean'], weights[f'{name}.1.running_var']
            factor = weights[f'{name}.1.weight'] / np.sqrt(var + 1e-5)
            return np.stack(
                [(weight @ row - mean) * factor + weights[f'{name}.1.bias'] for row in rows]
            )

        symmetric = layer.mode == 'symmetric'
        visible = np.stack([unit(row) for row in conv_norm('down_v2l', rows)])
        other = (
            visible if symmetric else np.stack([unit(row) for row in conv_norm('down_l2v', rows)])
        )
        messages = []
        for kernel, count in enumerate(layer.latent_channels):
            give = np.maximum(conv_norm(f'psi_v2l.{kernel}', visible), 0)
            name = 'psi_v2l' if symmetric else 'psi_l2v'
            take = np.maximum(conv_norm(f'{name}.{kernel}', other), 0)
            take = np.stack([unit(row) for row in take])
            give = take if symmetric else np.stack([unit(column) for column in give.T], axis=1)
            nodes = np.stack(
                [sum(give[i, node] * visible[i] for i in range(len(rows))) for node in range(count)]
            )
            mixed = np.zeros_like(nodes)
            for node in range(count):
                affinity = np.exp([unit(nodes[node]) @ unit(nodes[j]) for j in range(count)])
                for j in range(count):
                    mixed[node] += affinity[j] / affinity.sum() * nodes[j]
            messages.append(
                np.stack(
                    [
                        sum(take[i, node] * mixed[node] for node in range(count))
                        for i in range(len(rows))
                    ]
                )
            )
        result = conv_norm('up', np.concatenate(messages, axis=1)) * weights['gamma'] + rows
        return result.T.reshape(image.shape)

    def test_maps_say_where_a_node_looks(self):
        layer = self.build_active()
        x = self.input()
        maps = layer.attention_maps(x)
        assert maps.shape == (2, 1, 8, 5, 7) and maps.min() >= 0
        norms = maps.square().sum((3, 4)).sqrt()
        assert (((norms - 1).abs() < 1e-5) | (norms == 0)).all()

    def test_trains_with_batch_statistics(self):
        layer = self.build_active().train()
        layer(self.input(batch=3)).square().mean().backward()
        assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
        assert layer.up[1].num_batches_tracked == 1


class TestCGNL2d(LayerTester):
    layer_class = CGNL2d
    in_channels = 8
    variants = [
        dict(groups=4),
        dict(groups=2, order=3, gamma=0.2, inner_channels=6),
        dict(groups=1, scale=True, inner_channels=3),
    ]
    shapes = [(5, 7), (1, 1), (1, 6), (8, 3)]
    keys = [
        'queries.weight',
        'keys.weight',
        'values.weight',
        'reprojection.weight',
        'norm.weight',
        'norm.bias',
    ]
    bad_arguments = [
        (dict(groups=3), ValueError, 'groups must divide in_channels, got groups=3'),
        (dict(groups=8), ValueError, 'groups must divide inner_channels, got groups=8'),
        (dict(order=0, groups=1), ValueError, 'order must be at least 1, got 0'),
        (dict(gamma=0, groups=1), ValueError, 'gamma must be above 0'),
        (dict(scale=None, groups=1), TypeError, 'scale must be True or False'),
        (dict(zero_init='yes', groups=1), TypeError, 'zero_init must be True or False'),
    ]

    def build(self, variant=None, **changes):
        layer = super().build(variant, **changes)
        # With the usual one the norm cancels large products, see the layer's header.
        layer.norm.eps = 1.0
        return layer

    def reference(self, layer, image):
        weights = weights_of(layer)
        rows = image.reshape(image.shape[0], -1)
        theta, phi, g = (
            weights[f'{name}.weight'][:, :, 0, 0] @ rows for name in ('queries', 'keys', 'values')
        )
        width = layer.inner_channels // layer.groups
        out_width = layer.in_channels // layer.groups
        result = rows.copy()
        for group in range(layer.groups):
            inner = slice(group * width, (group + 1) * width)
            t, p, v = theta[inner].ravel(), phi[inner].ravel(), g[inner].ravel()
            scale = math.sqrt(len(t)) if layer.scale else 1
            if layer.order is None:
                attended = np.array([sum(t[i] * p[j] * v[j] for j in range(len(p))) / scale
                                     for i in range(len(t))])  # fmt: skip
            else:
                attended = np.zeros_like(t)
                for i in range(len(t)):
                    for j in range(len(p)):
                        kernel = sum(
                            (2 * layer.gamma * t[i] * p[j]) ** power / math.factorial(power)
                            for power in range(layer.order + 1)
                        )
                        attended[i] += math.exp(-2 * layer.gamma) * kernel * v[j] / scale
            outer = slice(group * out_width, (group + 1) * out_width)
            weight = weights['reprojection.weight'][outer, :, 0, 0]
            y = weight @ attended.reshape(width, -1)
            y = (y - y.mean()) / np.sqrt(y.var() + layer.norm.eps)
            scale, shift = weights['norm.weight'][outer], weights['norm.bias'][outer]
            result[outer] += y * scale[:, None] + shift[:, None]
        return result.reshape(image.shape)

    def test_the_norm_cancels_the_context_but_for_its_sign(self):
        """The property that the layer's header states: keys and values reach nothing else."""
        layer = self.build_active().double()
        layer.norm.eps = 1e-30
        x = self.input(dtype=torch.float64)
        before = layer(x) - x
        with torch.no_grad():
            layer.values.weight.mul_(7)
        torch.testing.assert_close(layer(x) - x, before, rtol=1e-9, atol=1e-9)
        with torch.no_grad():
            layer.values.weight.mul_(-1)
        torch.testing.assert_close(layer(x) - x, -before + 2 * layer.norm.bias[:, None, None],
                                   rtol=1e-9, atol=1e-9)  # fmt: skip
        expanded = self.build_active(self.variants[1]).double()
        expanded.norm.eps = 1e-30
        before = expanded(x) - x
        with torch.no_grad():
            expanded.keys.weight.mul_(7)
        assert not torch.allclose(expanded(x) - x, before, rtol=1e-3)


def test_half_precision_sums_over_large_maps_stay_finite():
    parts = [torch.full((1, 1, 40_000), 8.0, dtype=torch.float16) for _ in range(3)]
    result = compact_non_local(*parts)
    assert result.dtype == torch.float32 and result.isfinite().all()
    features = torch.full((1, 4, 80_000), 300.0, dtype=torch.float16)
    nodes = torch.full((1, 2, 80_000), 300.0, dtype=torch.float16)
    assert torch.isfinite(latent_message_passing(features / 600, nodes, nodes)).all()


@pytest.mark.parametrize('half', [True, False], ids=['half', 'autocast'])
def test_cgnl_in_float16_on_a_large_map(half):
    layer = CGNL2d(16, groups=2, zero_init=False)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    x = torch.randn(1, 16, 112, 160) + 1
    wanted = layer(x)
    if half:
        actual = layer.half()(x.half()).float()
    else:
        with torch.autocast('cpu', torch.float16):
            actual = layer(x)
    assert (actual - wanted).abs().max() < 0.02 * wanted.abs().max()


def test_latent_gnn_in_float16_with_vectors_of_zeros():
    layer = LatentGNN2d(8, 4, zero_init=False).eval()
    x = torch.randn(1, 8, 5, 5)
    x[:, :, 0] = 0  # no bias and no mean: zeros behind the first convolution
    x.requires_grad_()
    with torch.autocast('cpu', torch.float16):
        y = layer(x)
    y.square().sum().backward()
    assert y.isfinite().all() and x.grad.isfinite().all()
    assert layer.half()(x.detach().half()).isfinite().all()


@pytest.mark.parametrize('shape', [(1, 2, 6), (2, 2, 5), (2, 5)])
def test_operators_refuse_shapes_that_do_not_fit(shape):
    good = torch.zeros(2, 3, 5)
    with pytest.raises(ValueError, match='got'):
        latent_message_passing(good, torch.zeros(2, 2, 5), torch.zeros(shape)[..., :4])
    with pytest.raises(ValueError, match='must all be'):
        compact_non_local(good, good, torch.zeros(shape))
