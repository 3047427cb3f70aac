"""Efficient attention modules over sequences, images and volumes."""

import numpy as np
import pytest
import reference
import torch
from layer_tester import BLOCK_BAD_ARGUMENTS, BLOCK_KEYS, LayerTester, weights_of

from kronattn_mm.layers import EfficientAttention1d, EfficientAttention2d, EfficientAttention3d


class EfficientAttentionTester(LayerTester):
    variants = [
        dict(key_channels=4, value_channels=6, num_heads=2),
        dict(key_channels=3, value_channels=3, num_heads=3, normalization='scaling'),
        dict(key_channels=4, value_channels=6),
        dict(key_channels=1, value_channels=1, normalization='scaling'),
    ]
    keys = BLOCK_KEYS
    bad_arguments = BLOCK_BAD_ARGUMENTS

    def reference(self, layer, image):
        return reference.attention_block(
            image, weights_of(layer), layer.num_heads, layer.normalization
        )

    def test_attention_maps(self):
        for variant in self.variants:
            layer = self.build_active(variant).double()
            x = self.input(dtype=torch.float64)
            maps = layer.attention_maps(x)
            heads = layer.num_heads
            assert maps.shape == (2, heads, layer.key_channels // heads, *self.shapes[0])
            sums = maps.flatten(3).sum(-1)
            if layer.normalization == 'softmax':
                torch.testing.assert_close(sums, torch.ones_like(sums))
            key = layer.keys(x).flatten(2)
            n = key.shape[-1]
            wanted = key.softmax(-1) if layer.normalization == 'softmax' else key / n**0.5
            torch.testing.assert_close(maps.flatten(3).flatten(1, 2), wanted)


class TestEfficientAttention1d(EfficientAttentionTester):
    layer_class = EfficientAttention1d
    shapes = [(11,), (1,), (4,)]


class TestEfficientAttention2d(EfficientAttentionTester):
    layer_class = EfficientAttention2d
    shapes = [(5, 7), (1, 1), (1, 6), (8, 3)]

    def test_one_position_gives_the_projected_value(self):
        layer = self.build_active()
        x = self.input((1, 1))
        torch.testing.assert_close(layer(x), x + layer.reprojection(layer.values(x)))

    def test_integers_of_numpy(self):
        layer = self.layer_class(np.int64(6), key_channels=np.int32(4), value_channels=4)
        assert type(layer.in_channels) is int and type(layer.key_channels) is int

    def test_heads_are_separate_modules(self):
        """With two heads, each half of the channels is an attention of its own."""
        layer = self.build_active(dict(key_channels=4, value_channels=6, num_heads=2))
        x = self.input()
        total = x + layer.reprojection.bias[:, None, None]
        for head in range(2):
            single = self.layer_class(6, 2, 3)
            state = layer.state_dict()
            part = {}
            for name, size in (('keys', 2), ('queries', 2), ('values', 3)):
                for kind in ('weight', 'bias'):
                    part[f'{name}.{kind}'] = state[f'{name}.{kind}'][head * size :][:size]
            part['reprojection.weight'] = state['reprojection.weight'][:, head * 3 :][:, :3]
            part['reprojection.bias'] = torch.zeros(6)
            single.load_state_dict(part)
            total = total + single(x) - x
        torch.testing.assert_close(layer(x), total, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize('normalization', ['softmax', 'scaling'])
    def test_bfloat16_weights_at_high_resolution(self, normalization):
        layer = self.build_active(
            dict(key_channels=4, value_channels=4, normalization=normalization)
        ).eval()
        x = self.input((200, 304), batch=1)
        with torch.no_grad():
            wanted = layer(x)
            actual = layer.bfloat16()(x.bfloat16())
        assert torch.isfinite(actual).all()
        assert (actual - wanted).abs().max() < 8 * torch.finfo(
            torch.bfloat16
        ).eps * wanted.abs().max()


class TestEfficientAttention3d(EfficientAttentionTester):
    layer_class = EfficientAttention3d
    shapes = [(2, 3, 4), (1, 1, 1), (3, 1, 2)]
