"""What every attention operator demands of its inputs."""

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor

NORMALIZATIONS = ('softmax', 'scaling')
# What is computed in float32 where many numbers are summed.
HALF_PRECISION = (torch.float16, torch.bfloat16)
# What is no other kind of tensor, which might do something else where it is written over.
PLAIN_TENSORS = (Tensor, torch.nn.Parameter)


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
    if query.shape[-2] != key.shape[-2]:
        raise ValueError(
            f'query and key must have the same number of channels, got {_shapes(query, key, value)}'
        )
    if key.shape[-1] != value.shape[-1]:
        raise ValueError(
            'key and value must have the same number of positions, got '
            f'{_shapes(query, key, value)}'
        )
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        raise ValueError(
            f'leading dimensions (batch, heads) must be equal, got {_shapes(query, key, value)}'
        )


def _shapes(query: Tensor, key: Tensor, value: Tensor) -> str:
    return f'query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}'


def without_autocast(tensor: Tensor) -> AbstractContextManager:
    """Suspend autocast where it is on, so that sums asked for in float32 stay in float32."""
    kind = tensor.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()


def in_graph() -> bool:
    """Say whether operators are traced, compiled, exported or transformed rather than just run."""
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._are_functorch_transforms_active()
    )


def eager_on_cpu(*tensors: Tensor) -> bool:
    """Say whether an operator may run in loops, and in memory that it writes over, on these.

    That changes no result but rounding. Graphs that are traced, compiled or exported should hold no
    loops; counters of operations work with tensors of other types; half precision and what autocast
    makes of the parts of a loop need more care than the straightforward forms do.
    """
    if in_graph() or torch.is_autocast_enabled('cpu'):
        return False
    dtype = tensors[0].dtype
    if dtype not in (torch.float32, torch.float64):
        return False
    for tensor in tensors:
        if type(tensor) not in PLAIN_TENSORS or not tensor.is_cpu or tensor.dtype != dtype:
            return False
    return True


def needs_gradient(*tensors: Tensor) -> bool:
    """Say whether autograd records what is done with one of these."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
