"""Attention over the positions of an unfolded feature map, as the Kronecker paper sets it up.

Paper: "Kronecker Attention Networks" (arXiv 2007.08442), equation 1 and the linear transformations
W^Q, W^K, W^V described after it. This is the paper's "regular attention operator", which differs
from the non-local block in :mod:`.regular_attention` in that there is no reprojection and the
transformations can be left out one by one.

Where the paper is silent: the transformations are 1x1 convolutions with bias. The coefficient
matrix may pass a batch norm "to stabilize the training"; the paper gives neither its place nor its
axis. Our reading: before the softmax, and over one channel (the whole matrix), since statistics
for each position would tie the layer to one size of input.

Cost for n positions and c channels, multiply-accumulates: 2 n^2 c, and n c^2 a transformation.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..ops import contiguous_gradient, dot_product_attention
from .arguments import boolean, check_input, positive_int

_CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSFORMS = ('', 'v', 'qkv')


class TransformedAttention(nn.Module):
    """Queries, keys and values, each transformed or not, around an attention operator.

    Subclasses implement :meth:`attend` and say over how many spatial dimensions the queries and
    the keys and values lie.

    Args:
        in_channels (int): Channels c of the input.
        transforms (str): Which of query, key and value pass a linear transformation: ``'v'`` (the
            paper's modules), ``'qkv'`` (its DeepLab experiment) or ``''``. Defaults to ``'v'``.
        residual (bool): Add the result to the input. Defaults to True.
        zero_init (bool): Start with a transformation of zero for the values, so that the layer
            with its residual is the identity. Without a residual it has no effect. Defaults to
            True.
        coefficient_norm (str, optional): ``'batch_norm'`` normalises the coefficient matrix before
            the softmax; its three statistics and parameters do not depend on height and width.
            Defaults to None.
        key_channels (int, optional): Channels of queries and keys after transformation, for
            ``transforms='qkv'``. Defaults to ``in_channels``.
        out_channels (int, optional): Channels of the transformed values and so of the output.
            Defaults to ``in_channels``, which a residual demands.
        query_dims (int): Spatial dimensions over which the queries lie.
        key_dims (int): Spatial dimensions over which keys and values lie.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is not one of its choices, or arguments contradict each other.
    """

    spatial_dims: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        transforms: str,
        residual: bool,
        zero_init: bool,
        coefficient_norm: str | None,
        key_channels: int | None,
        out_channels: int | None,
        query_dims: int,
        key_dims: int,
    ) -> None:
        super().__init__()
        self.in_channels = positive_int('in_channels', in_channels)
        if transforms not in _TRANSFORMS:
            raise ValueError(
                f'transforms must be one of {", ".join(map(repr, _TRANSFORMS))}, got {transforms!r}'
            )
        if coefficient_norm not in (None, 'batch_norm'):
            raise ValueError(
                f"coefficient_norm must be None or 'batch_norm', got {coefficient_norm!r}"
            )
        self.transforms = transforms
        self.residual = boolean('residual', residual)
        self.zero_init = boolean('zero_init', zero_init)
        self.key_channels = positive_int(
            'key_channels', in_channels if key_channels is None else key_channels
        )
        self.out_channels = positive_int(
            'out_channels', in_channels if out_channels is None else out_channels
        )
        if 'q' not in transforms and self.key_channels != in_channels:
            raise ValueError(
                f"key_channels={key_channels} needs transforms='qkv', got {transforms!r}"
            )
        if 'v' not in transforms and self.out_channels != in_channels:
            raise ValueError(
                f'out_channels={out_channels} needs a transformation of the values, '
                f'got transforms={transforms!r}'
            )
        if residual and self.out_channels != in_channels:
            raise ValueError(
                f'a residual needs as many output as input channels, got '
                f'out_channels={out_channels} and in_channels={in_channels}'
            )
        if residual and zero_init and 'v' not in transforms:
            raise ValueError(
                'zero_init makes the transformation of the values zero, and '
                f'transforms={transforms!r} has none; give zero_init=False'
            )
        # The norm is registered before the convolutions: tools that fuse a convolution with the
        # norm registered after it would otherwise take it for the norm of the values.
        self.coefficient_norm = nn.BatchNorm2d(1) if coefficient_norm else None
        self.queries = self._transform('q', query_dims, self.key_channels)
        self.keys = self._transform('k', key_dims, self.key_channels)
        self.values = self._transform('v', key_dims, self.out_channels)
        self.reset_parameters()

    def _transform(self, letter: str, dims: int, channels: int) -> nn.Module:
        if letter not in self.transforms:
            return nn.Identity()
        return _CONVS[dims](self.in_channels, channels, 1)

    def reset_parameters(self) -> None:
        """Draw all weights anew; the values become zero where ``zero_init`` asks for it."""
        for module in (self.queries, self.keys, self.values, self.coefficient_norm):
            if hasattr(module, 'reset_parameters'):
                module.reset_parameters()
        if self.zero_init and self.residual:
            nn.init.zeros_(self.values.weight)
            nn.init.zeros_(self.values.bias)

    def init_weights(self) -> None:
        """Undo what an enclosing module's ``init_cfg`` wrote (mmengine calls this after it).

        A layer that does not start as the identity leaves the enclosing initialisation alone: it
        is a part of its network and not an addition to a trained one.
        """
        if self.zero_init and self.residual:
            self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended map, ``(N, out_channels, *)``, for ``x`` ``(N, in_channels, *)``."""
        check_input(self, x, self.spatial_dims)
        out = self.attend(x)
        if not self.residual:
            return out
        # The operators' results are fresh and no backward pass needs them, so the sum may take
        # their place; under autocast they are in half precision, which it must not be.
        return out.add_(x) if out.dtype == x.dtype else x + out

    def attend(self, x: Tensor) -> Tensor:
        """Attend within ``x`` ``(N, in_channels, *)``; returns ``(N, out_channels, *)``."""
        raise NotImplementedError(f'{type(self).__name__} does not define attend')

    def _attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # Under autocast what passed a convolution is in half precision and what did not is not.
        dtype = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
        query, key, value = (part.flatten(2).to(dtype) for part in (query, key, value))
        query = contiguous_gradient(query)  # not transformed, it may come from a batch norm
        return dot_product_attention(
            query, key, value, coefficient_transform=self._coefficient_transform()
        )

    def _coefficient_transform(self) -> Callable[[Tensor], Tensor] | None:
        return None if self.coefficient_norm is None else self._normalize_coefficients

    def _normalize_coefficients(self, coefficients: Tensor) -> Tensor:
        norm = self.coefficient_norm
        single = coefficients.unsqueeze(1).to(norm.weight.dtype)
        return norm(single).squeeze(1).to(coefficients.dtype)

    def extra_repr(self) -> str:
        return (
            f'in_channels={self.in_channels}, transforms={self.transforms!r}, '
            f'residual={self.residual}, zero_init={self.zero_init}, '
            f'key_channels={self.key_channels}, out_channels={self.out_channels}'
        )


class UnfoldedAttention2d(TransformedAttention):
    """The regular attention operator on feature maps ``(N, C, H, W)`` (equation 1).

    Args:
        in_channels (int): Channels c of the input.
        pooling (bool): Reduce keys and values by 2 x 2 max pooling (the paper's AttnNet+Pool,
            after the non-local networks), before their transformations. Sizes are rounded up.
            Defaults to False.
        transforms (str): ``'v'``, ``'qkv'`` or ``''``; see :class:`TransformedAttention`, also for
            the other arguments.
        residual (bool): Add the result to the input. Defaults to True.
        zero_init (bool): Start as the identity. Defaults to True.
        coefficient_norm (str, optional): ``'batch_norm'`` or None. Defaults to None.
        key_channels (int, optional): Channels of transformed queries and keys.
        out_channels (int, optional): Channels of transformed values.
    """

    spatial_dims = 2

    def __init__(
        self,
        in_channels: int,
        pooling: bool = False,
        transforms: str = 'v',
        residual: bool = True,
        zero_init: bool = True,
        coefficient_norm: str | None = None,
        key_channels: int | None = None,
        out_channels: int | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            transforms,
            residual,
            zero_init,
            coefficient_norm,
            key_channels,
            out_channels,
            query_dims=2,
            key_dims=2,
        )
        self.pooling = boolean('pooling', pooling)
        self.pool = nn.MaxPool2d(2, ceil_mode=True) if pooling else nn.Identity()

    def attend(self, x: Tensor) -> Tensor:
        pooled = self.pool(x)
        out = self._attention(self.queries(x), self.keys(pooled), self.values(pooled))
        return out.reshape(x.shape[0], self.out_channels, *x.shape[2:])

    def extra_repr(self) -> str:
        return f'{super().extra_repr()}, pooling={self.pooling}'
