"""A measured comparison as plain text and as plain data."""

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..cost.quantity import quantity
from ..cost.text import plain_table
from .comparison import Comparison, Row

_NONE = '-'


def comparison_text(comparison: Comparison, rows: Sequence[Row], settings: dict[str, Any]) -> str:
    """Lay out a measured comparison."""
    header = [
        'map',
        'operator',
        'multiply-adds',
        'coefficients\nbytes',
        'peak\nbytes',
        'time\nms',
        'CPU time\nms',
        'speed-up',
        'by CPU\ntime',
        'paper',
        'memory\nsaved',
        'paper',
    ]
    first = comparison.operators[0].name
    body = []
    for row in rows:
        measured, printed = row.measured, row.printed
        reference = row.operator == first
        stored = measured.coefficients
        body.append(
            [
                'x'.join(map(str, row.size)),
                row.operator,
                quantity(measured.macc),
                _NONE if stored is None else quantity(stored),
                quantity(measured.peak),
                _milliseconds(measured.time.wall),
                _milliseconds(measured.time.cpu),
                _NONE if reference else f'{row.speedup:.1f}x',
                _NONE if reference or row.cpu_speedup is None else f'{row.cpu_speedup:.1f}x',
                _NONE if printed is None else f'{printed.speedup}x',
                _NONE if reference else f'{row.saving:.2%}',
                _NONE if printed is None else f'{printed.saving:.2%}',
            ]
        )
    against = _against_fused(rows)
    return '\n'.join(
        [
            f'{comparison.title}, batch {comparison.batch}, {comparison.channels} channels.',
            '',
            plain_table(header, body, left=2),
            '',
            "multiply-adds, coefficients: in the paper's accounting (kronattn_mm.cost)",
            'peak bytes: the most in use at one time beyond the input, by the allocator',
            f'time: median of {settings["repetitions"]} turns of each operator, interleaved; CPU '
            'time does not grow',
            '      when other programs take the cores',
            f'speed-up, memory saved: against {first}, which stores its coefficients',
            *against,
            *comparison.notes,
            '',
            machine_text(settings),
        ]
    )


def machine_text(settings: dict[str, Any]) -> str:
    """Say on what and how was measured."""
    freed = {
        'usual': 'given back or kept as the usual allocator decides',
        'kept': 'kept by the process',
        'returned': 'given back at once',
    }[settings['memory']]
    return (
        f'{settings["device"]}, {settings["threads"]} thread(s) of {settings["cores"]} cores, '
        f'torch {settings["torch"]}, {settings["system"]}; '
        f'{settings.get("dtype", "float32")}; freed memory on the CPU is {freed}'
    )


def machine(device: str) -> dict[str, Any]:
    """Return what the figures depend on."""
    name = _processor()
    if torch.device(device).type == 'cuda':
        name = torch.cuda.get_device_name(device)
    return dict(
        device=f'{device} ({name})',
        threads=torch.get_num_threads(),
        cores=os.cpu_count(),
        torch=torch.__version__,
        system=' '.join((platform.system(), platform.machine(), *platform.libc_ver())),
    )


def _processor() -> str:
    """Return the name of the processor, as far as the system gives one."""
    try:
        lines = Path('/proc/cpuinfo').read_text(encoding='utf-8').splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(':')[2].strip() for line in lines if line.startswith('model name')]
    return names[0] if names else platform.processor() or platform.machine()


def comparison_dict(
    comparison: Comparison, rows: Sequence[Row], settings: dict[str, Any]
) -> dict[str, Any]:
    """Return a measured comparison as data for JSON; times in seconds, memory in bytes."""
    return dict(
        title=comparison.title,
        batch=comparison.batch,
        channels=comparison.channels,
        settings=settings,
        rows=[asdict(row) for row in rows],
    )


def _milliseconds(seconds: float | None) -> str:
    return _NONE if seconds is None else f'{1000 * seconds:.3g}'


def _against_fused(rows: Sequence[Row]) -> list[str]:
    """One line a size: how the others stand against SDPA."""
    lines = []
    fused = {row.size: row for row in rows if row.operator == 'SDPA'}
    for size, reference in fused.items():
        parts = [
            f'{row.operator} {reference.measured.time.wall / row.measured.time.wall:.1f}x'
            + (
                ''
                if row.measured.time.cpu is None or not reference.measured.time.cpu
                else f' ({reference.measured.time.cpu / max(row.measured.time.cpu, 1e-9):.1f}x by '
                'CPU time)'
            )
            for row in rows
            if row.size == size and row.operator.startswith('KAO')
        ]
        if parts:
            lines.append(f'speed-up over SDPA at {"x".join(map(str, size))}: {", ".join(parts)}')
    return lines
