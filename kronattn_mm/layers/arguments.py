"""Checks of constructor arguments that several layers share."""

import math
import operator
from collections.abc import Sequence
from typing import SupportsFloat, SupportsIndex

from torch import Tensor, nn


def positive_int(name: str, value: SupportsIndex) -> int:
    """Return ``value`` if it is an integer (numpy's too) of at least one.

    Raises:
        TypeError: If it is not an integer.
        ValueError: If it is smaller than one.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f'{name} must be an integer, got {value!r} ({type(value).__name__})')
    value = operator.index(value)
    if value < 1:
        raise ValueError(f'{name} must be at least 1, got {value}')
    return value


def boolean(name: str, value: bool) -> bool:
    """Return ``value`` if it is True or False; raise TypeError otherwise."""
    if not isinstance(value, bool):
        raise TypeError(f'{name} must be True or False, got {value!r}')
    return value


def divisible_by_heads(name: str, channels: int, num_heads: int) -> None:
    """Raise ValueError, naming the head counts there are, unless ``num_heads`` divides."""
    if channels % num_heads:
        choices = [heads for heads in range(1, min(channels, 64) + 1) if channels % heads == 0]
        raise ValueError(
            f'{name} must be divisible by num_heads, got {name}={channels} and '
            f'num_heads={num_heads}; {channels} allows num_heads in {choices}'
        )


def positive_number(name: str, value: float) -> float:
    """Return ``value`` if it is a finite number above zero.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is not finite or not above zero.
    """
    value = finite_number(name, value)
    if value <= 0:
        raise ValueError(f'{name} must be above 0, got {value}')
    return value


def finite_number(name: str, value: float) -> float:
    """Return ``value`` as a float if it is a finite number; raise TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, (SupportsFloat, SupportsIndex)):
        raise TypeError(f'{name} must be a number, got {value!r} ({type(value).__name__})')
    value = float(value)
    if not math.isfinite(value):
        raise ValueError(f'{name} must be finite, got {value}')
    return value


def probability(name: str, value: float) -> float:
    """Return ``value`` if it is a number from 0 up to, but not including, 1."""
    value = finite_number(name, value)
    if not 0 <= value < 1:
        raise ValueError(f'{name} must be at least 0 and below 1, got {value}')
    return value


def choice(name: str, value: str | None, choices: Sequence[str | None]) -> str | None:
    """Return ``value`` if it is one of ``choices``; raise ValueError that lists them otherwise."""
    if not isinstance(value, (str, type(None))) or value not in choices:
        raise ValueError(f'{name} must be one of {", ".join(map(repr, choices))}, got {value!r}')
    return value


def check_input(layer: nn.Module, x: Tensor, spatial_dims: int = 2) -> None:
    """Raise ValueError unless ``x`` is ``(N, layer.in_channels, *spatial)``.

    Args:
        layer (nn.Module): Whose input it is.
        x (Tensor): The input.
        spatial_dims (int): Number of spatial dimensions, 1 to 3. Defaults to 2.
    """
    if x.dim() != spatial_dims + 2 or x.shape[1] != layer.in_channels:
        dims = ('L', 'H, W', 'D, H, W')[spatial_dims - 1]
        raise ValueError(
            f'{type(layer).__name__} takes a tensor of shape (N, '
            f'{layer.in_channels}, {dims}), got {tuple(x.shape)}'
        )
