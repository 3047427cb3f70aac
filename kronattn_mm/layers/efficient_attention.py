"""Efficient attention modules for sequences, images and volumes.

Paper: "Efficient Attention: Attention with Linear Complexities" (arXiv 1812.01243), sections 3.2
and 3.4. Where the paper is silent: the weights other than the reprojection keep torch's default
initialisation; the reprojection starts at zero (``zero_init``), which the paper does not mention.
See :mod:`.attention_block` for the other deviations.

Cost for n positions, multiply-accumulates: n d (2 d_k + 2 d_v) + 2 n d_k d_v / heads, or fewer
where :mod:`kronattn_mm.ops.regrouped` groups the products otherwise, or on a CUDA device
:mod:`kronattn_mm.ops.triton`; the result is the same but for rounding.
``kronattn_mm.ops.use_backend('reference')`` keeps to the form written here.
"""

from torch import Tensor, nn

from ..ops import efficient_attention, template_maps
from ..ops.backend import backend, tell
from ..ops.regrouped import Projections, may_regroup, regrouped_attention, regrouping_pays
from ..ops.triton.availability import compute_dtype, why_not
from ..ops.triton.block import block
from .attention_block import AttentionBlock
from .hooks import has_hooks


class _EfficientAttention(AttentionBlock):
    __doc__ = AttentionBlock.__doc__

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x + reprojection(attention(x))`` for ``x`` of shape ``(N, in_channels, *)``."""
        self._check_input(x)
        name, convs = backend(), self._convs()
        by_triton = self._runs_in_triton(x, name, convs)
        if not by_triton and not self._regroups(x, name, convs):
            return super().forward(x)
        arguments = x, self._projections(convs), self.num_heads, self.normalization
        return block(*arguments, compute_dtype(x)) if by_triton else regrouped_attention(*arguments)

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

    def _convs(self) -> tuple[nn.Module, ...]:
        return self.keys, self.queries, self.values, self.reprojection

    @staticmethod
    def _projections(convs: tuple[nn.Module, ...]) -> Projections:
        weights = []
        for conv in convs:
            weights += conv.weight.flatten(1), conv.bias
        return Projections(*weights)

    def _reads_weights(self, convs: tuple[nn.Module, ...]) -> bool:
        """Say whether a form may read the weights and call no child.

        What was put in the place of a child, and hooks on one, would be passed over.
        """
        plain = self._conv_types[self.spatial_dims]
        for conv in convs:
            if (
                type(conv) is not plain
                or has_hooks(conv)
                or conv._backward_hooks
                or conv._backward_pre_hooks
            ):
                return False
        return True

    def _runs_in_triton(self, x: Tensor, name: str, convs: tuple[nn.Module, ...]) -> bool:
        """Say whether Triton's kernels run; where they were asked for and cannot, raise."""
        if name not in ('auto', 'triton') or (name == 'auto' and x.device.type != 'cuda'):
            return False
        if not self._reads_weights(convs):
            reason = 'a projection has hooks, or another module is in its place'
        else:
            dtypes = {conv.weight.dtype for conv in convs}
            sizes = self.key_channels, self.value_channels, self.num_heads
            reason = why_not(x, dtypes, *sizes, trial=name == 'auto')
        operator = f'{type(self).__name__} on {x.device.type}'
        if reason is None:
            tell(operator, 'triton')
        elif name == 'triton':
            raise ValueError(f"{type(self).__name__}: backend 'triton' was asked for, but {reason}")
        else:
            tell(operator, 'torch', reason)
        return reason is None

    def _regroups(self, x: Tensor, name: str, convs: tuple[nn.Module, ...]) -> bool:
        """Say whether the regrouped form applies and pays for an input like ``x``."""
        if name == 'reference' or not may_regroup(x) or not self._reads_weights(convs):
            return False
        if convs[0].weight.dtype != x.dtype:
            return False
        positions, channels = x.shape[2:].numel(), (self.key_channels, self.value_channels)
        return name == 'torch' or regrouping_pays(
            positions, self.in_channels, *channels, self.num_heads
        )


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
