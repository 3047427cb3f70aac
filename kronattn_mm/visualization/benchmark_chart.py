"""Bar charts of a measured comparison: time and peak memory of each operator, by size."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ..benchmark.comparison import Comparison, Row
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
    sizes = list(dict.fromkeys(row.size for row in rows))
    names = list(dict.fromkeys(row.operator for row in rows))
    figure = Figure(figsize=(9, 6.5), layout='constrained')
    figure.suptitle(
        f'{comparison.title}, batch {comparison.batch}, {comparison.channels} channels',
        x=0.01,
        ha='left',
    )
    # By processor time where there is one: it does not depend on what else the machine does.
    by_cpu = all(row.measured.time.cpu is not None for row in rows)
    clock = 'CPU time' if by_cpu else 'time'
    panels = figure.subplots(2, 1, sharex=True)
    for axes, label, unit, value in (
        (
            panels[0],
            f'{clock} (ms)',
            lambda number: f'{number:.3g}',
            lambda row: 1000 * (row.measured.time.cpu if by_cpu else row.measured.time.wall),
        ),
        (panels[1], 'peak memory (bytes)', quantity, lambda row: row.measured.peak),
    ):
        width = 0.8 / len(names)
        for index, name in enumerate(names):
            values = [
                value(row)
                for size in sizes
                for row in rows
                if (row.size, row.operator) == (size, name)
            ]
            offset = (index - (len(names) - 1) / 2) * width
            bars = axes.bar(
                [group + offset for group in range(len(sizes))],
                values,
                width,
                label=name,
                edgecolor='black',
                linewidth=0.6,
                hatch=_HATCHES[index % len(_HATCHES)],
            )
            axes.bar_label(bars, [unit(number) for number in values], fontsize=7, padding=1)
        axes.set_yscale('log')
        axes.margins(y=0.15)
        axes.set_ylabel(f'{label}, log scale')
        axes.grid(axis='y', linewidth=0.3)
        axes.set_axisbelow(True)
    panels[1].set_xticks(range(len(sizes)), [' x '.join(map(str, size)) for size in sizes])
    panels[1].set_xlabel(machine, fontsize=7)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside lower center', ncols=len(names))
    save_figure(figure, Path(path))
