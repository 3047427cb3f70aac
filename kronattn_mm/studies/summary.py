"""The results of a study as tables and charts."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from ..benchmark.text import machine
from ..visualization.report import write_text
from .claims import Verdict, verdicts

_GATES = ('saturated', 'attention_below', 'trunk_below', 'both_below')


def write_summary(out: Path, results: Sequence[Mapping[str, Any]], command: str) -> None:
    """Write ``results.json``, ``.csv`` and ``.md`` and the charts into ``out``.

    Args:
        out (Path): The folder of the study.
        results (Sequence[Mapping]): What :func:`~kronattn_mm.studies.train_run` returned.
        command (str): The command line, for the page.
    """
    from ..visualization.study_chart import draw_accuracy, draw_lambda, draw_saturation

    summary = summarize(results)
    made_with = dict(
        command=command,
        machine=machine('cuda' if torch.cuda.is_available() else 'cpu'),
        packages=_packages(),
    )
    judged = verdicts(accuracies(results))
    content = dict(
        made_with,
        summary=summary,
        runs=list(results),
        paper=[
            dict(
                source=verdict.claim.source,
                better=verdict.claim.better,
                worse=verdict.claim.worse,
                width=verdict.width,
                difference=verdict.difference,
                standard_error=verdict.error,
                verdict=verdict.text,
            )
            for verdict in judged
        ],
    )
    write_text(out / 'results.json', json.dumps(content, indent=2) + '\n')
    write_text(out / 'results.csv', runs_csv(results))
    write_text(out / 'results.md', markdown(summary, judged, made_with))
    draw_accuracy(out / 'accuracy.png', results)
    if any('lambda_mean' in run['history'][-1] for run in results):
        draw_lambda(out / 'lambda.png', results)
    if any('saturated' in run['history'][-1] for run in results):
        draw_saturation(out / 'saturation.png', results)


def accuracies(results: Sequence[Mapping[str, Any]]) -> dict[tuple[float, str], list[float]]:
    """Return the accuracies after the last epoch by width and name of the arm."""
    found: dict[tuple[float, str], list[float]] = {}
    for run in results:
        found.setdefault((run['width'], run['arm']), []).append(run['accuracy'])
    return found


def summarize(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add up the seeds of each network.

    Returns:
        list[dict]: For each width and arm: ``width``, ``arm``, ``params``, ``seeds``, ``mean`` and
        ``std`` of the accuracy after the last epoch (the latter, of the sample, None with one
        seed), and the means of what the hook ``GateStatistics`` logged in it.
    """
    rows = []
    for (width, arm), values in accuracies(results).items():
        runs = [run for run in results if (run['width'], run['arm']) == (width, arm)]
        last = [run['history'][-1] for run in runs]
        row = dict(
            width=width,
            arm=arm,
            params=runs[0]['params'],
            seeds=[run['seed'] for run in runs],
            mean=mean(values),
            std=stdev(values) if len(values) > 1 else None,
        )
        for key in ('lambda_mean', 'lambda_std', *_GATES):
            if key in last[0]:
                row[key] = mean(record[key] for record in last)
        rows.append(row)
    return sorted(rows, key=lambda row: row['width'])


def runs_csv(results: Sequence[Mapping[str, Any]]) -> str:
    """Return one line a run: what it is, its accuracy, and the gates at its end."""
    stream = io.StringIO()
    names = ['width', 'arm', 'seed', 'epochs', 'params', 'accuracy', 'seconds']
    gates = ['lambda_mean', 'lambda_std', *_GATES]
    writer = csv.writer(stream, lineterminator='\n')
    writer.writerow(names + gates)
    for run in results:
        writer.writerow(
            [run[name] for name in names] + [run['history'][-1].get(name, '') for name in gates]
        )
    return stream.getvalue()


def markdown(
    summary: Sequence[Mapping[str, Any]], judged: Sequence[Verdict], made_with: Mapping[str, Any]
) -> str:
    """Return the page with both tables and how they were made."""
    lines = [
        '# Attended convolutions under one recipe',
        '',
        'Accuracy (%) after the last epoch: mean and standard deviation (of the sample) over '
        'seeds. Gate columns:',
        'see docs/shift_and_balance.md, "What is measured".',
        '',
        '| width | network | parameters | seeds | accuracy | lambda: mean, spread '
        '| gate saturated | attention term < 1e-3 | trunk term < 1e-3 |',
        '| --- | --- | --- | --- | --- | --- | --- | --- | --- |',
    ]
    for row in summary:
        spread = '' if row['std'] is None else f' ± {row["std"]:.2f}'
        factor = (
            f'{row["lambda_mean"]:.3f}, {row["lambda_std"]:.3f}' if 'lambda_mean' in row else '-'
        )
        gates = [f'{row[key]:.2%}' if key in row else '-' for key in _GATES[:3]]
        lines.append(
            f'| x{row["width"]:g} | {row["arm"]} | {row["params"]:,} '
            f'| {len(row["seeds"])} | {row["mean"]:.2f}{spread} | {factor} | '
            + ' | '.join(gates)
            + ' |'
        )
    lines += ['', "## Against the paper's order", '']
    if judged:
        lines += [
            'The paper says that the first network is better than the second. The difference '
            'of the means is called',
            'telling where it is at least twice its standard '
            'error, which with few seeds is a weak test.',
            '',
            '| paper | width | better | worse | difference, points | standard error | |',
            '| --- | --- | --- | --- | --- | --- | --- |',
        ]
        lines += [
            f'| {verdict.claim.source} | x{verdict.width:g} | {verdict.claim.better} '
            f'| {verdict.claim.worse} | {verdict.difference:+.2f} | '
            + ('-' if verdict.error is None else f'{verdict.error:.2f}')
            + f' | {verdict.text} |'
            for verdict in judged
        ]
    else:
        lines.append('No two of these networks are compared in the paper.')
    settings = made_with['machine']
    packages = ', '.join(f'{name} {version}' for name, version in made_with['packages'].items())
    lines += [
        '',
        f'`{made_with["command"]}`',
        '',
        f'{settings["device"]}, {settings["threads"]} thread(s) of {settings["cores"]} '
        f'cores; {packages}',
        '',
    ]
    return '\n'.join(lines)


def _packages() -> dict[str, str]:
    names = ('torch', 'mmengine', 'onedl-mmengine', 'mmpretrain', 'onedl-mmpretrain')
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
