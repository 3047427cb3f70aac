"""Charts of what was measured: time and peak memory of each form by size, and bars cleared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from ..benchmark.comparison import Comparison, Row
from ..benchmark.contest import FLOOR
from ..benchmark.measure import Time
from ..benchmark.results import Result
from ..cost.quantity import quantity
from .cost_chart import save_figure

_HATCHES = ('', '///', '...', 'xx', '\\\\')


def draw_comparison(
    path: str | Path, comparison: Comparison, rows: Sequence[Row], machine: str
) -> None:
    """Draw time and peak memory as grouped bars on log scales.

    Args:
        path (str or Path): PNG file to write; complete or not at all.
        comparison (Comparison): What was measured.
        rows (Sequence[Row]): What :func:`~kronattn_mm.benchmark.compare` gave.
        machine (str): On what it was measured, for the foot of the chart.

    Raises:
        OSError: If the file cannot be written.
    """
    _draw_times(
        path,
        f'{comparison.title}, batch {comparison.batch}, {comparison.channels} channels',
        [
            _Bar(' x '.join(map(str, row.size)), row.operator, row.measured.time, row.measured.peak)
            for row in rows
        ],
        machine,
        by_cpu=True,  # which does not depend on what else the machine does
    )


def draw_results(path: str | Path, title: str, results: Mapping[str, Result], machine: str) -> None:
    """Draw time and peak memory of contests as grouped bars on log scales.

    Args:
        path (str or Path): PNG file to write; complete or not at all.
        title (str): Of the chart.
        results (Mapping[str, Result]): What was measured, by what stands below the group.
        machine (str): On what it was measured, for the foot of the chart.

    Raises:
        OSError: If the file cannot be written.
    """
    bars = [
        _Bar(group, name, figures.time, figures.peak)
        for group, result in results.items()
        for name, figures in result.figures.items()
        if figures.peak is not None or name == FLOOR
    ]
    _draw_times(path, title, bars, machine)


def draw_bars(path: str | Path, results: Mapping[str, Sequence[Result]], machine: str) -> None:
    """Draw how far beyond its bar each ratio is: right of the line the bar is cleared.

    Args:
        path (str or Path): PNG file to write; complete or not at all.
        results (Mapping): Measured by what becomes of freed memory, ``'usual'``, ``'kept'`` and
            ``'returned'``.
        machine (str): On what it was measured, for the foot of the chart.

    Raises:
        OSError: If the file cannot be written.
    """
    names = [item.bar.what for result in results['usual'] for item in result.cleared]
    figure = Figure(figsize=(10, 1.5 + 0.25 * len(names)), layout='constrained')
    axes = figure.subplots()
    places = {name: len(names) - index for index, name in enumerate(names)}
    for label, measured, style in (
        ('default allocator', 'usual', dict(marker='o', color='tab:blue')),
        ('all kept', 'kept', dict(marker='s', color='tab:orange', markerfacecolor='none')),
        ('all given back', 'returned', dict(marker='^', color='tab:green', markerfacecolor='none')),
        ('aim', None, dict(marker='|', color='black', markersize=12)),
    ):
        values, heights = [], []
        for result in results[measured or 'usual']:
            for item in result.cleared:
                value = item.bar.aim if measured is None else item.value
                gain = value / item.bar.must
                values.append(gain if item.bar.at_least else 1 / gain)
                heights.append(places[item.bar.what])
        axes.plot(values, heights, linestyle='none', label=label, **style)
    axes.axvline(1, color='black', linewidth=1)
    axes.set_xscale('log')
    axes.set_yticks(list(places.values()), list(places), fontsize=8)
    axes.set_xlabel('times the bar (1: just cleared), log scale')
    axes.margins(y=0.01)
    axes.grid(linewidth=0.3)
    figure.supxlabel(machine, fontsize=7)
    figure.legend(loc='outside upper right', ncols=4)
    save_figure(figure, Path(path))


@dataclass(frozen=True)
class _Bar:
    group: str
    name: str
    time: Time
    peak: int | None


def _draw_times(
    path: str | Path, title: str, bars: Sequence[_Bar], machine: str, by_cpu: bool = False
) -> None:
    groups = list(dict.fromkeys(bar.group for bar in bars))
    names = list(dict.fromkeys(bar.name for bar in bars))
    figure = Figure(figsize=(9, 6.5), layout='constrained')
    figure.suptitle(title, x=0.01, ha='left')
    by_cpu = by_cpu and all(bar.time.cpu is not None for bar in bars)
    clock = 'CPU time' if by_cpu else 'time'
    panels = figure.subplots(2, 1, sharex=True)
    for axes, label, unit, value in (
        (
            panels[0],
            f'{clock} (ms)',
            lambda number: f'{number:.3g}',
            lambda bar: 1000 * (bar.time.cpu if by_cpu else bar.time.wall),
        ),
        (panels[1], 'peak memory (bytes)', quantity, lambda bar: bar.peak),
    ):
        width = 0.8 / len(names)
        for index, name in enumerate(names):
            offset = (index - (len(names) - 1) / 2) * width
            drawn = {
                groups.index(bar.group) + offset: value(bar)
                for bar in bars
                if bar.name == name and value(bar) is not None
            }
            rectangles = axes.bar(
                list(drawn),
                list(drawn.values()),
                width,
                label=name,
                edgecolor='black',
                linewidth=0.6,
                hatch=_HATCHES[index % len(_HATCHES)],
            )
            axes.bar_label(
                rectangles, [unit(number) for number in drawn.values()], fontsize=7, padding=1
            )
        axes.set_yscale('log')
        axes.margins(y=0.15)
        axes.set_ylabel(f'{label}, log scale')
        axes.grid(axis='y', linewidth=0.3)
        axes.set_axisbelow(True)
    panels[1].set_xticks(range(len(groups)), groups)
    panels[1].set_xlabel(machine, fontsize=7)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside lower center', ncols=len(names))
    save_figure(figure, Path(path))
