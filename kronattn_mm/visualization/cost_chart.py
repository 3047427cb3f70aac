"""Bar charts of memory and computation, in the manner of the efficient-attention paper's Figure 2.

Paper: "Efficient Attention" (arXiv 1812.01243), Figure 2: blue bars for efficient attention,
orange ones for non-local modules, log scale, d = d_v = 2 d_k = 64. The text does not name the
input sizes of the figure; those here are the ones of its examples and two more squares. Bars have
hatches too, so that the chart reads without colour.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..cost.paper_tables import section_3_5_costs
from ..cost.quantity import quantity
from ..cost.report import CostReport

FIGURE_2_SIZES = ((32, 32), (64, 64), (128, 128), (256, 256), (28, 28, 4), (64, 64, 32))
_STYLES = (dict(color='tab:blue', hatch=''), dict(color='tab:orange', hatch='///'))


def draw_figure_2(path: str | Path) -> None:
    """Draw what both modules need over the input size, in the paper's accounting.

    Args:
        path (str or Path): PNG file to write; complete or not at all.

    Raises:
        OSError: If the file cannot be written.
    """
    costs = [section_3_5_costs(*size) for size in FIGURE_2_SIZES]
    names = ('efficient attention', 'non-local')
    draw_requirements(
        path,
        [' x '.join(map(str, size)) for size in FIGURE_2_SIZES],
        memory={name: [pair[i].memory for pair in costs] for i, name in enumerate(names)},
        macc={name: [pair[i].macc for pair in costs] for i, name in enumerate(names)},
        title='Resource requirements for 64-channel inputs (d = d_v = 2 d_k = 64)',
    )


def draw_layers(path: str | Path, report: CostReport) -> None:
    """Draw what each inserted layer of a model needs: the paper's accounting, and as executed.

    Args:
        path (str or Path): PNG file to write; complete or not at all.
        report (CostReport): Of a model with inserted layers.

    Raises:
        OSError: If the file cannot be written.
        ValueError: If nothing is inserted into the model.
    """
    if not report.layers:
        raise ValueError('no layer is inserted into the model, so there is nothing to draw')
    layers = report.layers
    height, width = report.image_shape
    draw_requirements(
        path,
        [layer.name for layer in layers],
        memory={
            "paper's accounting": [layer.paper and layer.paper.memory for layer in layers],
            'as executed': [layer.executed.allocated for layer in layers],
        },
        macc={
            "paper's accounting": [layer.paper and layer.paper.macc for layer in layers],
            'as executed': [layer.executed.macc for layer in layers],
        },
        title=f'Inserted layers, one image of {height} x {width}',
    )


def draw_requirements(
    path: str | Path,
    labels: Sequence[str],
    memory: Mapping[str, Sequence[float | None]],
    macc: Mapping[str, Sequence[float | None]],
    title: str,
) -> None:
    """Draw memory and computation as grouped bars on a log scale.

    Args:
        path (str or Path): PNG file to write; complete or not at all.
        labels (Sequence[str]): One for each group of bars.
        memory (Mapping[str, Sequence]): Bytes by the name of a series (one or two), one value for
            each label, None where there is none.
        macc (Mapping[str, Sequence]): Multiply-accumulates, likewise.
        title (str): Over the chart.

    Raises:
        OSError: If the file cannot be written.
    """
    figure = Figure(figsize=(max(8, 1.35 * len(labels)), 7.5), layout='constrained')
    figure.suptitle(title, x=0.01, ha='left')
    panels = figure.subplots(2, 1, sharex=True)
    for axes, series, label in zip(
        panels, (memory, macc), ('memory (bytes)', 'computation (MACC)'), strict=True
    ):
        _draw_bars(axes, series, len(labels))
        axes.set_ylabel(f'{label}, log scale')
    long = max(map(len, labels)) > 14
    panels[1].set_xticks(
        range(len(labels)), labels, rotation=20 if long else 0, ha='right' if long else 'center'
    )
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc='outside upper right')
    save_figure(figure, Path(path))


def _draw_bars(axes: Axes, series: Mapping[str, Sequence[float | None]], groups: int) -> None:
    width = 0.8 / len(series)
    values = [value for row in series.values() for value in row if value]
    for index, ((name, row), style) in enumerate(zip(series.items(), _STYLES)):  # noqa: B905
        offset = (index - (len(series) - 1) / 2) * width
        bars = axes.bar(
            [group + offset for group in range(groups)],
            [value or float('nan') for value in row],
            width,
            label=name,
            edgecolor='black',
            linewidth=0.6,
            **style,
        )
        axes.bar_label(
            bars, [quantity(value) if value else '' for value in row], fontsize=7, padding=1
        )
    axes.set_yscale('log')
    # Bars on a log scale have no natural foot: start a decade below the smallest.
    axes.set_ylim(min(values, default=1) / 10, max(values, default=1) * 10)
    axes.grid(axis='y', linewidth=0.3)
    axes.set_axisbelow(True)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, complete or not at all."""
    unfinished = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
    try:
        figure.savefig(unfinished, format='png', dpi=150)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
