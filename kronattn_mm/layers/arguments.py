"""Checks of constructor arguments that several layers share."""

import operator
from typing import SupportsIndex


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
        raise ValueError(f'{name} must be divisible by num_heads, got {name}={channels} and '
                         f'num_heads={num_heads}; {channels} allows num_heads in {choices}')
