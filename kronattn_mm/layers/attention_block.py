"""The block around an attention operator: projections before it, reprojection and residual after.

Paper: "Efficient Attention" (arXiv 1812.01243), section 3.2, last paragraph; the non-local block
has the same structure with dot-product attention in the middle, so that the two can be compared,
and trained weights moved from one to the other, component by component (section 2.3).

Deviations: several heads are allowed (the paper has one; more come from its authors' code); the
reprojection is there even where d_v equals d, so that zero initialisation is always possible.

Cost, multiply-accumulates: n d (2 d_k + 2 d_v) beside the operator's own.
"""

from typing import ClassVar

from torch import Tensor, nn

from ..ops.checks import check_normalization
from .arguments import boolean, check_input, divisible_by_heads, positive_int


class AttentionBlock(nn.Module):
    """Project to queries, keys and values, attend, project back and add to the input.

    Subclasses say over how many spatial dimensions they work and implement :meth:`attend`.

    Args:
        in_channels (int): Channels d of the input, which are those of the output too.
        key_channels (int): Channels d_k of queries and keys, all heads together. Defaults to 64,
            the paper's choice.
        value_channels (int): Channels d_v of the values, all heads together. Defaults to 64.
        num_heads (int): Heads among which key and value channels are divided. Defaults to 1.
        normalization (str): ``'softmax'`` or ``'scaling'`` (paper, equations 2 and 4).
        zero_init (bool): Start with a reprojection of zero, so that the block is exactly the
            identity and a pretrained network computes what it did before. Defaults to True.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range or the heads do not divide the channels.
    """

    spatial_dims: ClassVar[int]
    _conv_types = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}

    def __init__(
        self,
        in_channels: int,
        key_channels: int = 64,
        value_channels: int = 64,
        num_heads: int = 1,
        normalization: str = 'softmax',
        zero_init: bool = True,
    ) -> None:
        super().__init__()
        self.in_channels = positive_int('in_channels', in_channels)
        self.key_channels = positive_int('key_channels', key_channels)
        self.value_channels = positive_int('value_channels', value_channels)
        self.num_heads = positive_int('num_heads', num_heads)
        divisible_by_heads('key_channels', self.key_channels, self.num_heads)
        divisible_by_heads('value_channels', self.value_channels, self.num_heads)
        check_normalization(normalization)
        self.normalization = normalization
        self.zero_init = boolean('zero_init', zero_init)

        conv = self._conv_types[self.spatial_dims]
        self.keys = conv(self.in_channels, self.key_channels, 1)
        self.queries = conv(self.in_channels, self.key_channels, 1)
        self.values = conv(self.in_channels, self.value_channels, 1)
        self.reprojection = conv(self.value_channels, self.in_channels, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew; the reprojection becomes zero if ``zero_init`` is set."""
        for projection in (self.keys, self.queries, self.values, self.reprojection):
            projection.reset_parameters()
        if self.zero_init:
            nn.init.zeros_(self.reprojection.weight)
            nn.init.zeros_(self.reprojection.bias)

    def init_weights(self) -> None:
        """Undo what an enclosing module's ``init_cfg`` wrote (mmengine calls this after it)."""
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x + reprojection(attention(x))`` for ``x`` of shape ``(N, in_channels, *)``."""
        self._check_input(x)
        query = self._split_heads(self.queries(x))
        attended = self.attend(query, x)
        attended = attended.reshape(x.shape[0], self.value_channels, *x.shape[2:])
        return x + self.reprojection(attended)

    def attend(self, query: Tensor, x: Tensor) -> Tensor:
        """Attend from ``query`` ``(N, heads, d_k / heads, n)`` to ``x`` ``(N, in_channels, *)``.

        Returns:
            Tensor: ``(N, heads, d_v / heads, n)``.
        """
        raise NotImplementedError(f'{type(self).__name__} does not define attend')

    def extra_repr(self) -> str:
        return (
            f'in_channels={self.in_channels}, key_channels={self.key_channels}, '
            f'value_channels={self.value_channels}, num_heads={self.num_heads}, '
            f'normalization={self.normalization!r}, zero_init={self.zero_init}'
        )

    def _split_heads(self, x: Tensor) -> Tensor:
        # (N, C, *spatial) -> (N, heads, C / heads, n)
        return x.unflatten(1, (self.num_heads, -1)).flatten(3)

    def _check_input(self, x: Tensor) -> None:
        check_input(self, x, self.spatial_dims)
