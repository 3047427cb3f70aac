"""The regular (non-local) block that the papers compare with."""

import reference
import torch
from layer_tester import BLOCK_BAD_ARGUMENTS, BLOCK_KEYS, LayerTester, weights_of

from kronattn_mm.layers import EfficientAttention2d, RegularAttention2d


class TestRegularAttention2d(LayerTester):
    layer_class = RegularAttention2d
    variants = [
        dict(key_channels=4, value_channels=6, num_heads=2, normalization='scaling'),
        dict(key_channels=4, value_channels=4, pooling=True),
        dict(key_channels=4, value_channels=6),
        dict(key_channels=4, value_channels=4, pooling=True, normalization='scaling'),
    ]
    shapes = [(5, 7), (1, 1), (1, 6), (8, 3)]
    keys = BLOCK_KEYS
    bad_arguments = [
        *BLOCK_BAD_ARGUMENTS,
        (dict(pooling=2), TypeError, 'pooling must be True or False'),
    ]

    def reference(self, layer, image):
        return reference.attention_block(
            image,
            weights_of(layer),
            layer.num_heads,
            layer.normalization,
            reference.dot_product_attention,
            reference.max_pool_2x2 if layer.pooling else None,
        )

    def test_equals_efficient_attention_under_scaling(self):
        regular = self.build_active(
            dict(key_channels=4, value_channels=6, normalization='scaling')
        ).double()
        efficient = EfficientAttention2d(6, 4, 6, normalization='scaling').double()
        efficient.load_state_dict(regular.state_dict())
        x = self.input(dtype=torch.float64)
        torch.testing.assert_close(efficient(x), regular(x), rtol=1e-12, atol=1e-12)
