"""What Triton's kernels need, and which inputs they take. Imports torch alone."""

import functools
import importlib.util
import os
from collections.abc import Iterable

import torch
from torch import Tensor

from ..checks import PLAIN_TENSORS, in_graph

# A program holds so many rows of keys, or of values, in its registers.
MOST_ROWS = 128
_OLDEST_TRITON = (3, 5)  # where loops can be told not to keep what does not change in registers
_OLDEST_CARD = (8, 0)  # bfloat16 and TF32 products
_INTERPRETER_MULTIPLIES_BFLOAT16 = False  # of triton 3.7: it multiplies their bits as integers


def interpreted() -> bool:
    """Say whether Triton's interpreter runs the kernels, on tensors in main memory."""
    return os.environ.get('TRITON_INTERPRET') == '1'


def missing() -> str | None:
    """Return what keeps Triton's kernels from running on this machine, if anything does."""
    version = _version()
    if version is None:
        return 'the package triton is not installed (pip install triton)'
    if tuple(map(int, version.split('.')[:2])) < _OLDEST_TRITON:
        return f'triton is {version}, and the kernels need 3.5 (that of torch 2.9) or newer'
    if not interpreted() and not torch.cuda.is_available():
        return (
            'torch sees no CUDA device (TRITON_INTERPRET=1 runs the kernels on the CPU, slowly, '
            'to check them)'
        )
    return None


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return autocast's dtype where it is on, else that of ``x``."""
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def why_not(
    x: Tensor,
    weight_dtypes: Iterable[torch.dtype],
    key_channels: int,
    value_channels: int,
    num_heads: int,
    trial: bool = False,
) -> str | None:
    """Return why the kernels of the efficient-attention block do not take an input.

    Args:
        x (Tensor): Feature map, ``(N, d, *spatial)``.
        weight_dtypes (Iterable): Dtypes of the weights.
        key_channels (int): Channels of the keys, all heads together.
        value_channels (int): Channels of the values, likewise.
        num_heads (int): Heads.
        trial (bool): Try the kernels on a small map first (:mod:`.trial`), once for each device.
            Defaults to False.

    Returns:
        str | None: The reason, None if they do take it.
    """
    reason = missing() or _not_this_tensor(x) or _not_these_numbers(x, set(weight_dtypes))
    if reason is not None:
        return reason
    keys = padded_keys(key_channels, num_heads)
    if keys > MOST_ROWS or padded(value_channels) > MOST_ROWS:
        return (
            f'keys or values have more than {MOST_ROWS} channels (those of each head are rounded '
            'up to a power of two)'
        )
    if trial:
        from .trial import fault

        return fault(x.device, compute_dtype(x), torch.is_grad_enabled())
    return None


def _not_this_tensor(x: Tensor) -> str | None:
    if type(x) not in PLAIN_TENSORS:
        return f'the input is a {type(x).__name__}, not a plain tensor'
    if in_graph():
        return 'a graph is being traced, or a transformation of torch.func is active'
    if interpreted():
        if x.device.type != 'cpu':
            return f"Triton's interpreter works on the CPU, and the input is on {x.device.type}"
    elif x.device.type != 'cuda':
        return f'the input is on {x.device.type}, not on a CUDA device'
    elif _capability(x.device) < _OLDEST_CARD:
        return 'the card is older than compute capability 8.0'
    if x.numel() == 0:
        return 'the input is empty'
    # Places within an image are 32-bit numbers; the output of an expanded input is not expanded.
    axes = zip(x.shape[1:], x.stride()[1:], strict=True)
    reach = sum((size - 1) * stride for size, stride in axes)
    if max(reach, x.shape[1:].numel()) >= 2**31:
        return 'an image reaches over 2^31 numbers or more'
    return None


def _not_these_numbers(x: Tensor, weight_dtypes: set[torch.dtype]) -> str | None:
    dtype = compute_dtype(x)
    for numbers in (x.dtype, dtype, *weight_dtypes):
        if numbers not in (torch.float16, torch.bfloat16, torch.float32):
            return f'the input or a weight is {str(numbers).removeprefix("torch.")}'
    if interpreted() and torch.bfloat16 in (x.dtype, dtype):
        if not _INTERPRETER_MULTIPLIES_BFLOAT16:
            return "Triton's interpreter multiplies bfloat16 numbers wrongly"
    if not torch.is_autocast_enabled(x.device.type) and weight_dtypes != {x.dtype}:
        return 'input and weights have different dtypes, and autocast is off'
    return None


def padded(rows: int) -> int:
    """Return how many rows a program holds for so many: a power of two that tensor cores take."""
    return max(16, 1 << (rows - 1).bit_length())


def padded_keys(key_channels: int, num_heads: int) -> int:
    """Return the same for keys, where each head begins at a multiple of a power of two."""
    per_head = 1 << (key_channels // num_heads - 1).bit_length()
    return max(16, per_head << (num_heads - 1).bit_length())


@functools.cache
def _version() -> str | None:
    if importlib.util.find_spec('triton') is None:
        return None
    import triton

    return triton.__version__


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
