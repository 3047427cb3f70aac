"""The course of a study: accuracy, lambda, and the saturation of gates over the epochs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from .cost_chart import save_figure

# Lines differ in more than colour.
_STYLES = tuple(
    dict(color=color, linestyle=dash, marker=marker, markersize=4)
    for color, dash, marker in zip(
        (
            'tab:blue',
            'tab:orange',
            'tab:green',
            'tab:red',
            'tab:purple',
            'tab:brown',
            'tab:pink',
            'tab:gray',
            'tab:olive',
            'tab:cyan',
        ),
        ('-', '--', '-.', ':', '-', '--', '-.', ':', '-', '--'),
        'osD^vP*Xhd',
        strict=True,
    )
)
_TERMS = {
    'saturated': 'slope of the gate',
    'attention_below': 'factor of the attention term',
    'trunk_below': "factor of the trunk's term",
}


def draw_accuracy(path: str | Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Draw accuracy over the epochs, a panel for each width: mean of the seeds, and their range.

    Args:
        path (str or Path): PNG file to write; complete or not at all.
        results (Sequence[Mapping]): What :func:`kronattn_mm.studies.train_run` returned.

    Raises:
        OSError: If the file cannot be written.
    """
    widths = sorted({run['width'] for run in results})
    figure, panels = _panels(len(widths), 'Accuracy on held-out pictures')
    for axes, width in zip(panels, widths, strict=True):
        for name, runs, style in _lines(results, width):
            _draw_line(axes, name, runs, 'accuracy', style)
        axes.set_title(f'MobileNetV2 x{width:g}', fontsize=10)
        axes.set_ylabel('top-1 accuracy (%)')
    _finish(figure, panels, path)


def draw_lambda(path: str | Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Draw mean and standard deviation of lambda over all channels, over the epochs.

    The arguments are those of :func:`draw_accuracy`.
    """
    widths = sorted({run['width'] for run in results})
    figure, panels = _panels(2 * len(widths), 'Lambda over all channels')
    for index, width in enumerate(widths):
        mean_axes, spread_axes = panels[2 * index : 2 * index + 2]
        for name, runs, style in _lines(results, width, 'lambda_mean'):
            _draw_line(mean_axes, name, runs, 'lambda_mean', style)
            _draw_line(spread_axes, name, runs, 'lambda_std', style)
        mean_axes.set_ylabel('mean')
        spread_axes.set_ylabel('standard deviation')
        for axes in (mean_axes, spread_axes):
            axes.set_title(f'MobileNetV2 x{width:g}', fontsize=10)
    _finish(figure, panels, path)


def draw_saturation(path: str | Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Draw the share of channels whose factors are below the threshold, over the epochs.

    The arguments are those of :func:`draw_accuracy`.
    """
    widths = sorted({run['width'] for run in results})
    figure, panels = _panels(
        len(_TERMS) * len(widths), 'Share of channels with a factor below 1e-3'
    )
    for index, width in enumerate(widths):
        row = panels[len(_TERMS) * index : len(_TERMS) * (index + 1)]
        for axes, (key, title) in zip(row, _TERMS.items(), strict=True):
            for name, runs, style in _lines(results, width, key):
                _draw_line(axes, name, runs, key, style)
            axes.set_title(f'x{width:g}: {title}', fontsize=10)
            _percent(axes)
    _finish(figure, panels, path)


def draw_layers(path: str | Path, networks: Mapping[str, Sequence[Any]], title: str) -> None:
    """Draw, layer by layer, the share of channels whose gradient factors have vanished.

    Args:
        path (str or Path): PNG file to write; complete or not at all.
        networks (Mapping): :class:`~kronattn_mm.visualization.gates.GateRecord` of each layer, in
            the order of the network, by the name of the network.
        title (str): Over the chart.

    Raises:
        OSError: If the file cannot be written.
    """
    columns = max(map(len, networks.values()))
    figure = Figure(
        figsize=(max(8, 0.16 * columns + 2), 2.4 * len(_TERMS) + 0.6), layout='constrained'
    )
    figure.suptitle(title, x=0.01, ha='left')
    panels = figure.subplots(len(_TERMS), 1, sharex=True)
    for axes, (key, label) in zip(panels, _TERMS.items(), strict=True):
        what = 'gate' if key == 'saturated' else key.removesuffix('_below')
        for (name, records), style in zip(networks.items(), _STYLES):  # noqa: B905
            axes.plot(
                range(1, len(records) + 1),
                [record.share(what) for record in records],
                label=name,
                linewidth=1.2,
                **style,
            )
        axes.set_title(label, fontsize=10)
        axes.set_ylabel('share of channels')
        _percent(axes)
        _plain(axes)
    panels[-1].set_xlabel('gated layer, from the input to the output')
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside lower center', ncols=min(len(labels), 5))
    save_figure(figure, Path(path))


def _panels(count: int, title: str) -> tuple[Figure, list[Any]]:
    columns = 3 if count % 3 == 0 else 2 if count % 2 == 0 else 1
    rows = count // columns
    figure = Figure(figsize=(max(6, 4.2 * columns), 3.4 * rows + 0.8), layout='constrained')
    figure.suptitle(title, x=0.01, ha='left')
    return figure, list(figure.subplots(rows, columns, sharex=True, squeeze=False).flat)


def _lines(
    results: Sequence[Mapping[str, Any]], width: float, key: str = 'accuracy'
) -> Iterator[tuple[str, list[Mapping[str, Any]], Mapping[str, Any]]]:
    names = list(dict.fromkeys(run['arm'] for run in results))
    for index, name in enumerate(names):
        runs = [
            run
            for run in results
            if (run['arm'], run['width']) == (name, width) and key in run['history'][-1]
        ]
        if runs:
            yield name, runs, _STYLES[index % len(_STYLES)]


def _draw_line(
    axes: Any, name: str, runs: Sequence[Mapping[str, Any]], key: str, style: Mapping[str, Any]
) -> None:
    # An epoch whose validation an interruption swallowed is missing in that run.
    by_epoch: dict[int, list[float]] = {}
    for run in runs:
        for record in run['history']:
            by_epoch.setdefault(record['epoch'], []).append(record[key])
    epochs = sorted(by_epoch)
    axes.plot(
        epochs, [mean(by_epoch[epoch]) for epoch in epochs], label=name, linewidth=1.5, **style
    )
    axes.fill_between(
        epochs,
        [min(by_epoch[epoch]) for epoch in epochs],
        [max(by_epoch[epoch]) for epoch in epochs],
        color=style['color'],
        alpha=0.15,
        linewidth=0,
    )


def _finish(figure: Figure, panels: Sequence[Any], path: str | Path) -> None:
    for axes in panels:
        axes.set_xlabel('epoch')
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _plain(axes)
    handles = {}
    for axes in panels:
        handles.update(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(
        handles.values(), handles.keys(), loc='outside lower center', ncols=min(len(handles), 5)
    )
    save_figure(figure, Path(path))


def _percent(axes: Any) -> None:
    # Not less than five percent high, so that nothing looks like much.
    axes.set_ylim(0, max(0.05, axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _plain(axes: Any) -> None:
    axes.grid(axis='y', linewidth=0.3)
    axes.set_axisbelow(True)
    axes.spines[['top', 'right']].set_visible(False)
