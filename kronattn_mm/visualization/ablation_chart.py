"""Charts of an ablation: the metric without each layer, and over the strength of all of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from .report import replacing


def draw_ablation(
    path: str | Path,
    metric: str,
    values: Mapping[str, float],
    strengths: Mapping[float, float] | None = None,
    note: str = '',
) -> None:
    """Draw one metric for each setting, as bars, and over the strength, as a curve.

    Args:
        path (str or Path): PNG file to write; complete or not at all.
        metric (str): Name of the metric.
        values (Mapping): Value of the metric by setting, the first being that of all layers on,
            to which the others are compared.
        strengths (Mapping, optional): Value of the metric by strength.
        note (str): What has to be known to read it, under the bars.

    Raises:
        OSError: If the file cannot be written.
    """
    names = list(values)
    columns = 2 if strengths else 1
    figure = Figure(figsize=(7 * columns, 1.6 + 0.42 * len(names)), dpi=110, layout='constrained')
    axes = figure.subplots(1, columns, squeeze=False)[0]
    _draw_bars(axes[0], metric, names, [values[name] for name in names])
    if note:
        figure.supxlabel(note, fontsize=9)
    if strengths:
        points = sorted(strengths.items())
        axes[1].plot(*zip(*points, strict=True), marker='o', color='tab:blue')
        for strength, value in points:
            axes[1].annotate(
                f'{value:.4g}',
                (strength, value),
                textcoords='offset points',
                xytext=(0, 6),
                ha='center',
                fontsize=9,
            )
        axes[1].set_xlabel('strength of all layers (1: as trained, 0: off)')
        axes[1].set_ylabel(metric)
        axes[1].margins(y=0.2)
        axes[1].grid(alpha=0.3)
    with replacing(path) as draft:
        figure.savefig(draft, format='png')


def _draw_bars(axes: object, metric: str, names: Sequence[str], values: Sequence[float]) -> None:
    places = range(len(names))
    # What is compared with is hatched, so that the chart reads without colour.
    bars = axes.barh(
        places,
        values,
        color=['tab:blue'] + ['tab:orange'] * (len(names) - 1),
        edgecolor='black',
        linewidth=0.6,
    )
    bars[0].set_hatch('///')
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.axvline(values[0], color='black', linewidth=0.8, linestyle='--')
    axes.axvline(0, color='black', linewidth=0.8)
    axes.set_xlabel(metric)
    axes.margins(x=0.25)
    for place, value in zip(places, values, strict=True):
        change = '' if place == 0 else f'  ({value - values[0]:+.4g})'
        axes.annotate(
            f'{value:.4g}{change}',
            (max(value, 0), place),
            va='center',
            fontsize=9,
            textcoords='offset points',
            xytext=(4, 0),
            bbox=dict(facecolor='white', edgecolor='none', pad=1),
        )
