"""Kronecker attention operators: attention over row and column averages.

Paper: "Kronecker Attention Networks" (arXiv 2007.08442), section 3.4: KAO_KV (equation 16) attends
from every position to the w + h averages, KAO_QKV (equation 17) among the averages only and
spreads the result by an outer sum (equation 18). Linear transformations come after the averaging
(its Figure 3), so those of keys and values, and in KAO_QKV of the queries, work on w + h vectors.

Deviations and readings: three axes are our generalisation. For the batch norm on the coefficients
see :mod:`.unfolded_attention`. The residual is not part of the operator in the paper; it is there
so that the layer can be inserted into a trained network.

Cost for an h x w map of c channels, multiply-accumulates: KV 2 h w (h + w) c; QKV 2 (h + w)^2 c;
a transformation of keys or values (h + w) c^2.
"""

from torch import Tensor

from ..ops import outer_sum
from ..ops.kronecker import averages_and_map
from .arguments import check_input
from .unfolded_attention import TransformedAttention

_MODES = ('kv', 'qkv')


class _KroneckerAttention(TransformedAttention):
    def __init__(
        self,
        in_channels: int,
        mode: str = 'kv',
        transforms: str = 'v',
        residual: bool = True,
        zero_init: bool = True,
        coefficient_norm: str | None = None,
        key_channels: int | None = None,
        out_channels: int | None = None,
    ) -> None:
        if mode not in _MODES:
            raise ValueError(f'mode must be one of {", ".join(map(repr, _MODES))}, got {mode!r}')
        super().__init__(
            in_channels,
            transforms,
            residual,
            zero_init,
            coefficient_norm,
            key_channels,
            out_channels,
            key_dims=1,
            query_dims=self.spatial_dims if mode == 'kv' else 1,
        )
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended map, ``(N, out_channels, *)``, for ``x`` ``(N, in_channels, *)``."""
        check_input(self, x, self.spatial_dims)
        averages, x = averages_and_map(x)
        queries = self.queries(x if self.mode == 'kv' else averages)
        out = self._attention(queries, self.keys(averages), self.values(averages))
        if self.mode == 'qkv':
            return outer_sum(out, x.shape[2:], x if self.residual else None)
        out = out.reshape(x.shape[0], self.out_channels, *x.shape[2:])
        if not self.residual:
            return out
        return out.add_(x) if out.dtype == x.dtype else x + out  # see TransformedAttention

    def extra_repr(self) -> str:
        return f'{super().extra_repr()}, mode={self.mode!r}'


_ARGUMENTS = """

    Args:
        in_channels (int): Channels c of the input.
        mode (str): ``'kv'`` (keys and values are averages) or ``'qkv'`` (queries too). Defaults to
            ``'kv'``.
        transforms (str): Linear transformations after the averaging, of the values (``'v'``, the
            paper's modules), of all three (``'qkv'``, its DeepLab experiment) or none (``''``).
        residual (bool): Add the result to the input. Defaults to True.
        zero_init (bool): Start as the identity (values transformed to zero). Without a residual it
            has no effect. Defaults to True.
        coefficient_norm (str, optional): ``'batch_norm'`` normalises the coefficient matrix before
            the softmax. Defaults to None.
        key_channels (int, optional): Channels of queries and keys, for ``transforms='qkv'``.
        out_channels (int, optional): Channels of the output, without a residual.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is not one of its choices, or arguments contradict each other.
    """


class KroneckerAttention2d(_KroneckerAttention):
    __doc__ = 'Kronecker attention over feature maps ``(N, C, H, W)``.' + _ARGUMENTS
    spatial_dims = 2


class KroneckerAttention3d(_KroneckerAttention):
    __doc__ = 'Kronecker attention over volumes ``(N, C, D, H, W)``.' + _ARGUMENTS
    spatial_dims = 3
