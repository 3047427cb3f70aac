"""Kronecker attention layers, and the regular operator in the same frame."""

import numpy as np
import pytest
import reference
import torch
from layer_tester import LayerTester, weights_of

from kronattn_mm.layers import KroneckerAttention2d, KroneckerAttention3d, UnfoldedAttention2d

BAD_ARGUMENTS = [
    (dict(transforms='kv'), ValueError, "'', 'v', 'qkv', got 'kv'"),
    (dict(transforms=''), ValueError, "transforms='' has none; give zero_init=False"),
    (dict(key_channels=4), ValueError, "key_channels=4 needs transforms='qkv', got 'v'"),
    (dict(out_channels=4), ValueError, 'out_channels=4 and in_channels=6'),
    (dict(out_channels=4, transforms='', residual=False), ValueError, 'transformation of the'),
    (dict(coefficient_norm='layer_norm'), ValueError, "'batch_norm', got 'layer_norm'"),
    (dict(residual=1), TypeError, 'residual must be True or False, got 1'),
    (dict(in_channels=-1), ValueError, 'in_channels must be at least 1, got -1'),
]


class TransformedTester(LayerTester):
    keys = ['values.weight', 'values.bias']
    operator = staticmethod(reference.kronecker_attention)

    def build_active(self, variant=None):
        layer = super().build_active(variant)
        if layer.coefficient_norm is not None:
            layer.coefficient_norm.running_mean.normal_()
            layer.coefficient_norm.running_var.uniform_(0.5, 2.0)
        return layer

    def reference(self, layer, image):
        weights = weights_of(layer)

        def normalize(coefficients):
            if layer.coefficient_norm is None:
                return coefficients
            mean, var = (weights[f'coefficient_norm.running_{part}'] for part in ('mean', 'var'))
            normal = (coefficients - mean) / np.sqrt(var + layer.coefficient_norm.eps)
            return normal * weights['coefficient_norm.weight'] + weights['coefficient_norm.bias']

        out = self.attend(layer, image, weights, normalize)
        return image + out if layer.residual else out

    def attend(self, layer, image, weights, normalize):
        return reference.kronecker_attention(image, layer.mode, weights, normalize)

    def test_identity_at_init(self):
        for variant in self.variants:
            if variant.get('residual', True) and variant.get('transforms') != '':
                layer = self.build(variant)
                x = self.input()
                assert torch.equal(layer(x), x), variant

    def test_every_parameter_gets_a_gradient(self):
        """The softmax over the keys ignores what is added to all of them, so the keys' bias and
        the norm's bias have a gradient of zero by the equations."""
        for variant in self.variants:
            layer = self.build_active(variant).double()
            x = self.input(dtype=torch.float64).requires_grad_()
            (layer(x) * torch.randn_like(x)).sum().backward()
            assert x.grad.abs().max() > 0
            for name, parameter in layer.named_parameters():
                assert parameter.grad is not None, (variant, name)
                if name not in ('keys.bias', 'coefficient_norm.bias'):
                    assert parameter.grad.abs().max() > 1e-9, (variant, name)

    def test_coefficient_norm_in_training(self):
        layer = self.build_active(dict(self.variants[0], coefficient_norm='batch_norm'))
        layer.train()
        before = layer.coefficient_norm.running_mean.clone()
        for shape in self.shapes:  # its parameters do not depend on the size
            layer(self.input(shape))
        assert layer.coefficient_norm.num_batches_tracked == len(self.shapes)
        assert not torch.equal(layer.coefficient_norm.running_mean, before)
        assert sum(p.numel() for p in layer.coefficient_norm.parameters()) == 2

    def test_output_channels(self):
        layer = self.build(dict(self.variants[0], transforms='v', residual=False, out_channels=4))
        assert layer(self.input()).shape == (2, 4, *self.shapes[0])


class TestKroneckerAttention2d(TransformedTester):
    layer_class = KroneckerAttention2d
    variants = [
        dict(mode='kv'),
        dict(mode='qkv', transforms='qkv', coefficient_norm='batch_norm'),
        dict(mode='qkv'),
        dict(mode='kv', transforms='qkv', key_channels=3, coefficient_norm='batch_norm'),
        dict(mode='kv', transforms='', residual=False),
        dict(mode='qkv', transforms='', residual=False),
    ]
    shapes = [(5, 7), (1, 1), (1, 6), (8, 3)]
    bad_arguments = [*BAD_ARGUMENTS, (dict(mode='q'), ValueError, "'kv', 'qkv', got 'q'")]


class TestKroneckerAttention3d(TransformedTester):
    layer_class = KroneckerAttention3d
    variants = [
        dict(mode='kv'),
        dict(mode='qkv', transforms='qkv', coefficient_norm='batch_norm'),
        dict(mode='qkv'),
    ]
    shapes = [(2, 3, 4), (1, 1, 1), (3, 1, 2)]
    bad_arguments = BAD_ARGUMENTS


class TestUnfoldedAttention2d(TransformedTester):
    layer_class = UnfoldedAttention2d
    variants = [
        dict(),
        dict(transforms='qkv', key_channels=3, coefficient_norm='batch_norm'),
        dict(pooling=True),
        dict(transforms='', residual=False, pooling=True),
    ]
    shapes = [(5, 7), (1, 1), (1, 6), (8, 3)]
    bad_arguments = [*BAD_ARGUMENTS, (dict(pooling='2'), TypeError, 'pooling must be True')]

    def attend(self, layer, image, weights, normalize):
        channels = image.shape[0]
        tokens = image.reshape(channels, -1).T

        def project(name, rows):
            if f'{name}.weight' not in weights:
                return rows
            weight = weights[f'{name}.weight']
            return rows @ weight.reshape(weight.shape[0], -1).T + weights[f'{name}.bias']

        memory = reference.max_pool_2x2(tokens, image.shape[1:]) if layer.pooling else tokens
        query = project('queries', tokens)
        key, value = project('keys', memory), project('values', memory)
        coefficients = normalize(key @ query.T)
        shares = np.stack([reference.softmax(column) for column in coefficients.T])
        return (shares @ value).T.reshape(-1, *image.shape[1:])


@pytest.mark.parametrize(
    'layer',
    [
        UnfoldedAttention2d(6, coefficient_norm='batch_norm', zero_init=False),
        KroneckerAttention2d(6, 'kv', 'qkv', coefficient_norm='batch_norm', zero_init=False),
        KroneckerAttention2d(6, 'qkv', 'v', coefficient_norm='batch_norm', zero_init=False),
    ],
    ids=['unfolded', 'kv', 'qkv'],
)
def test_fusing_leaves_the_coefficient_norm_alone(layer):
    from mmcv.cnn import fuse_conv_bn

    x = torch.randn(2, 6, 5, 7)
    layer(x)  # statistics other than 0 and 1
    layer.eval()
    before = layer(x)
    torch.testing.assert_close(fuse_conv_bn(layer)(x), before)


@pytest.mark.parametrize('mode', ['kv', 'qkv'])
def test_insertable_with_identity(mode):
    from mmengine.registry import MODELS

    import kronattn_mm.registry  # noqa: F401

    plain = MODELS.build(dict(type='mmdet.ResNet', depth=18))
    layer = dict(type='kronattn_mm.KroneckerAttention2d', mode=mode, coefficient_norm='batch_norm')
    module = MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base='mmdet.ResNet',
            depth=18,
            init_cfg=dict(type='Kaiming', layer=['Conv1d', 'Conv2d']),
            insert=[dict(at='res2-4', layer=layer)],
        )
    )
    module.init_weights()
    module.load_state_dict(plain.state_dict(), strict=False)
    plain.eval(), module.eval()
    x = torch.randn(2, 3, 64, 96)
    assert all(torch.equal(a, b) for a, b in zip(module(x), plain(x), strict=True))
