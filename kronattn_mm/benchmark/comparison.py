"""Operators on a series of inputs, against one of them and against what a paper printed."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .measure import Time, peak_memory, time_interleaved


@dataclass(frozen=True)
class Operator:
    """One operator.

    Attributes:
        name: As in the table.
        run: From ``(N, C, *spatial)`` to the same shape.
        macc: Multiply-accumulates from ``(channels, spatial)``, for one image.
        coefficients: Bytes of the coefficient matrix, likewise; None if none is stored.
    """

    name: str
    run: Callable[[Tensor], Tensor]
    macc: Callable[[int, Sequence[int]], int]
    coefficients: Callable[[int, Sequence[int]], int] | None = None


@dataclass(frozen=True)
class Printed:
    """What a paper printed for an operator on one size: ratio of times, share of memory saved."""

    speedup: float
    saving: float


@dataclass(frozen=True)
class Comparison:
    """A table: operators (the first is what the others are compared with) and input sizes."""

    title: str
    operators: tuple[Operator, ...]
    batch: int
    channels: int
    sizes: tuple[tuple[int, ...], ...]
    printed: Mapping[tuple[str, tuple[int, ...]], Printed]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """Figures of an operator on one size.

    Attributes:
        macc: Multiply-accumulates of the batch.
        coefficients: Bytes of coefficient matrices of the batch, None if none is stored.
        peak: Most bytes in use at one time, beyond the input.
        time: Of one call.
    """

    macc: int
    coefficients: int | None
    peak: int
    time: Time


@dataclass(frozen=True)
class Row:
    """One line of the table: measured figures beside the first operator's and the paper's.

    Attributes:
        size: Height and width.
        operator: Its name.
        measured: Its figures.
        speedup: How many times less time than the first operator, by the clock on the wall.
        cpu_speedup: The same by processor time; None on a GPU.
        saving: Share of the first operator's peak memory that is saved.
        printed: The paper's two figures, where it gives them.
    """

    size: tuple[int, ...]
    operator: str
    measured: Measured
    speedup: float
    cpu_speedup: float | None
    saving: float
    printed: Printed | None


def compare(
    comparison: Comparison,
    repetitions: int = 15,
    device: str = 'cpu',
    sizes: Sequence[tuple[int, ...]] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Measure a comparison: forward passes in float32 without gradients.

    Args:
        comparison (Comparison): What to measure.
        repetitions (int): Turns, of which the median is taken. Defaults to 15.
        device (str): ``'cpu'`` or a CUDA device. Defaults to ``'cpu'``.
        sizes (Sequence, optional): Sizes instead of the comparison's.
        progress (Callable): Called after each turn of each operator.

    Returns:
        list[Row]: Size by size, operator by operator.
    """
    rows = []
    for size in comparison.sizes if sizes is None else sizes:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(comparison.batch, comparison.channels, *size, generator=generator)
        x = x.to(device)
        functions = {operator.name: _bind(operator.run, x) for operator in comparison.operators}
        with torch.no_grad():
            peaks = {name: peak_memory(function, device) for name, function in functions.items()}
            times = time_interleaved(functions, repetitions, device=device, progress=progress)
        figures = {
            operator.name: _measured(
                operator, comparison, size, peaks[operator.name], times[operator.name]
            )
            for operator in comparison.operators
        }
        first = figures[comparison.operators[0].name]
        for name, measured in figures.items():
            cpu = None
            if measured.time.cpu is not None and first.time.cpu is not None:
                cpu = first.time.cpu / max(measured.time.cpu, 1e-9)
            rows.append(
                Row(
                    tuple(size),
                    name,
                    measured,
                    first.time.wall / measured.time.wall,
                    cpu,
                    1 - measured.peak / first.peak,
                    comparison.printed.get((name, tuple(size))),
                )
            )
    return rows


def _bind(run: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Tensor]:
    return lambda: run(x)


def _measured(
    operator: Operator, comparison: Comparison, size: Sequence[int], peak: int, time: Time
) -> Measured:
    stored = None
    if operator.coefficients is not None:
        stored = comparison.batch * operator.coefficients(comparison.channels, size)
    return Measured(comparison.batch * operator.macc(comparison.channels, size), stored, peak, time)


def positions(size: Sequence[int]) -> int:
    """Return the number of positions of a map."""
    return math.prod(size)
