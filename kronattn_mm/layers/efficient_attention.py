"""Efficient attention modules for sequences, images and volumes.

Paper: "Efficient Attention: Attention with Linear Complexities" (arXiv 1812.01243), sections 3.2
and 3.4. Where the paper is silent: the weights other than the reprojection keep torch's default
initialisation; the reprojection starts at zero (``zero_init``), which the paper does not mention.
See :mod:`.attention_block` for the other deviations.

Cost for n positions, multiply-accumulates: n d (2 d_k + 2 d_v) + 2 n d_k d_v / heads. Where the
regrouped form of :mod:`kronattn_mm.ops.regrouped` has fewer, it runs instead; its result is the
same but for rounding. ``kronattn_mm.ops.use_backend('reference')`` keeps to the form written here.
"""

from torch import Tensor, nn

from ..ops import efficient_attention, template_maps
from ..ops.backend import backend
from ..ops.regrouped import Projections, may_regroup, regrouped_attention, regrouped_cost
from .attention_block import AttentionBlock


class _EfficientAttention(AttentionBlock):
    __doc__ = AttentionBlock.__doc__

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x + reprojection(attention(x))`` for ``x`` of shape ``(N, in_channels, *)``."""
        self._check_input(x)
        if not self._regroups(x):
            return super().forward(x)
        weights = [
            tensor for conv in self._projections() for tensor in (conv.weight.flatten(1), conv.bias)
        ]
        return regrouped_attention(x, Projections(*weights), self.num_heads, self.normalization)

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

    def _projections(self) -> tuple[nn.Module, ...]:
        return self.keys, self.queries, self.values, self.reprojection

    def _regroups(self, x: Tensor) -> bool:
        """Say whether the regrouped form applies and pays for an input like ``x``."""
        name = backend()
        if name == 'reference' or not may_regroup(x):
            return False
        plain = self._conv_types[self.spatial_dims]
        for conv in self._projections():
            # It reads the weights and calls no child: what was put in the place of one, and hooks
            # on one, would be passed over.
            hooks = (
                conv._forward_hooks,
                conv._forward_pre_hooks,
                conv._backward_hooks,
                conv._backward_pre_hooks,
            )
            if type(conv) is not plain or any(hooks) or conv.weight.dtype != x.dtype:
                return False
        if name == 'torch':
            return True
        positions = x.shape[2:].numel()
        d, d_k, d_v = self.in_channels, self.key_channels, self.value_channels
        straightforward = positions * (d * (2 * d_k + 2 * d_v) + 2 * d_k * d_v // self.num_heads)
        return regrouped_cost(positions, d, d_k, d_v, self.num_heads) <= straightforward


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
