"""What every attention operator demands of its inputs."""

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor

NORMALIZATIONS = ('softmax', 'scaling')


def check_normalization(normalization: str) -> None:
    """Raise ValueError unless ``normalization`` is one that the operators know."""
    if normalization not in NORMALIZATIONS:
        raise ValueError(
            f'normalization must be one of {", ".join(map(repr, NORMALIZATIONS))}, '
            f'got {normalization!r}'
        )


def check_attention_inputs(query: Tensor, key: Tensor, value: Tensor, normalization: str) -> None:
    """Check query ``(..., d_k, m)``, key ``(..., d_k, n)`` and value ``(..., d_v, n)``.

    Raises:
        TypeError: If an input is not a floating-point tensor or the dtypes differ.
        ValueError: If the shapes do not fit together or ``normalization`` is unknown.
    """
    check_normalization(normalization)
    for name, tensor in (('query', query), ('key', key), ('value', value)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f'{name} must be a floating-point tensor, got {kind}')
        if tensor.dim() < 2:
            raise ValueError(
                f'{name} must have at least the dimensions (channels, positions), '
                f'got shape {tuple(tensor.shape)}'
            )
        if tensor.dtype != query.dtype:
            raise TypeError(
                f'query, key and value must have one dtype, got {query.dtype}, '
                f'{key.dtype} and {value.dtype}'
            )
    shapes = f'query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}'
    if query.shape[-2] != key.shape[-2]:
        raise ValueError(f'query and key must have the same number of channels, got {shapes}')
    if key.shape[-1] != value.shape[-1]:
        raise ValueError(f'key and value must have the same number of positions, got {shapes}')
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        raise ValueError(f'leading dimensions (batch, heads) must be equal, got {shapes}')


def without_autocast(tensor: Tensor) -> AbstractContextManager:
    """Suspend autocast where it is on, so that sums asked for in float32 stay in float32."""
    kind = tensor.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()
