"""Efficient attention modules for sequences, images and volumes.

Paper: "Efficient Attention: Attention with Linear Complexities" (arXiv 1812.01243), sections 3.2
and 3.4. Where the paper is silent: the weights other than the reprojection keep torch's default
initialisation; the reprojection starts at zero (``zero_init``), which the paper does not mention.
See :mod:`.attention_block` for the other deviations.

Cost for n positions, multiply-accumulates: n d (2 d_k + 2 d_v) + 2 n d_k d_v / heads.
"""

from torch import Tensor

from ..ops import efficient_attention, template_maps
from .attention_block import AttentionBlock


class _EfficientAttention(AttentionBlock):
    __doc__ = AttentionBlock.__doc__

    def attend(self, query: Tensor, x: Tensor) -> Tensor:
        key = self._split_heads(self.keys(x))
        value = self._split_heads(self.values(x))
        return efficient_attention(query, key, value, self.normalization)

    def attention_maps(self, x: Tensor) -> Tensor:
        """Return the global attention maps, one for each key channel (paper, section 3.4).

        Args:
            x (Tensor): Feature map, ``(N, in_channels, *spatial)``.

        Returns:
            Tensor: ``(N, num_heads, key_channels // num_heads, *spatial)``. With softmax each map
            is non-negative and sums to one over the positions; with scaling it is the key map
            divided by the square root of their number.
        """
        self._check_input(x)
        maps = template_maps(self._split_heads(self.keys(x)), self.normalization)
        return maps.unflatten(-1, x.shape[2:])


class EfficientAttention1d(_EfficientAttention):
    __doc__ = f"""Efficient attention over sequences ``(N, C, L)``.

    {AttentionBlock.__doc__}"""
    spatial_dims = 1


class EfficientAttention2d(_EfficientAttention):
    __doc__ = f"""Efficient attention over feature maps ``(N, C, H, W)``.

    {AttentionBlock.__doc__}"""
    spatial_dims = 2


class EfficientAttention3d(_EfficientAttention):
    __doc__ = f"""Efficient attention over volumes ``(N, C, D, H, W)``.

    {AttentionBlock.__doc__}"""
    spatial_dims = 3
