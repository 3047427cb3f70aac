"""The measured part of docs/performance.md, written by one command.

With the allocator as it is, each contest has a process of its own, since what others before it
freed would decide which memory is kept for it, and several such processes, since that is another
thing in each. One process keeps all freed memory and one returns all, which are the two ends, and
change a process for good. The page's own words stay; what is between the two marks is replaced,
with the chart and the data beside it.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..visualization.report import write_text
from .contest import Contest
from .results import Result, bars_markdown, figures_markdown, results_of_data, results_of_processes
from .text import machine_text

BEGIN = '<!-- measured by kronattn bench: what stands below is replaced -->'
END = '<!-- end of what was measured -->'


class PageError(ValueError):
    """A page that the measured part cannot be put into; the message says why."""


def check_page(page: Path) -> None:
    """Raise PageError unless a page has the two marks, each once, in their order."""
    try:
        text = page.read_text(encoding='utf-8')
    except OSError as error:
        raise PageError(f'{page} cannot be read: {error.strerror}') from error
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise PageError(f'{page} must have the lines {BEGIN!r} and {END!r} once, in that order')


def measure_in_processes(
    contests: Sequence[Contest], options: Sequence[str], processes: int
) -> dict[str, list[dict[str, Any]]]:
    """Measure contests in processes of their own, one after the other.

    Args:
        contests (Sequence[Contest]): All of them, of which some are for one allocator only.
        options (Sequence[str]): Further options of ``kronattn bench``.
        processes (int): How many measure each contest with the allocator as it is.

    Returns:
        dict[str, list[dict]]: What ``--json`` writes of all contests, by what becomes of freed
        memory: ``'usual'`` (as often as there are processes), ``'kept'`` and ``'returned'`` (once).

    Raises:
        PageError: If one of the processes fails.
    """
    every = [contest.key for contest in contests]
    some = [contest.key for contest in contests if contest.all_allocators]
    return dict(
        usual=[
            _joined([_measure([key], options, 'usual') for key in every]) for _ in range(processes)
        ],
        kept=[_measure(some, options, 'kept')],
        returned=[_measure(some, options, 'returned')],
    )


def _measure(keys: Sequence[str], options: Sequence[str], memory: str) -> dict[str, Any]:
    """Return what ``--json`` writes of contests that one process measures."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / 'measured.json'
        command = [sys.executable, '-m', 'kronattn_mm', 'bench', '--contests', *keys, *options]
        command += ['--memory', memory, '--json', str(file)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise PageError(
                f'a process that measures {", ".join(keys)} ended with exit code {done.returncode}'
            )
        return json.loads(file.read_text(encoding='utf-8'))


def _joined(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the contests of several processes with the settings, which are those of all."""
    return {**runs[0], 'contests': [contest for run in runs for contest in run['contests']]}


def write_page(page: Path, measured: Mapping[str, Sequence[dict[str, Any]]]) -> list[Path]:
    """Put measured contests into a page, and write the chart and the data beside it.

    Args:
        page (Path): Markdown file with the two marks.
        measured (Mapping): From :func:`measure_in_processes`.

    Returns:
        list[Path]: The files that were written.

    Raises:
        PageError: If the page lacks the marks.
        OSError: If a file cannot be written.
    """
    from ..visualization.benchmark_chart import draw_bars

    check_page(page)
    results = {
        memory: results_of_processes([results_of_data(run['contests']) for run in runs])
        for memory, runs in measured.items()
    }
    settings = measured['usual'][0]['settings']
    chart = page.parent / 'images' / f'{page.stem}.png'
    data = page.with_suffix('.json')
    before, _, rest = page.read_text(encoding='utf-8').partition(BEGIN)
    after = rest.partition(END)[2]
    chart.parent.mkdir(exist_ok=True)
    draw_bars(chart, results, machine_text(settings))
    write_text(data, json.dumps(measured, indent=1) + '\n')
    processes = len(measured['usual'])
    text = _measured(results, settings, processes, f'images/{chart.name}', data.name)
    write_text(page, f'{before}{BEGIN}\n\n{text}\n\n{END}{after}')
    return [page, chart, data]


def _measured(
    results: Mapping[str, Sequence[Result]],
    settings: dict[str, Any],
    processes: int,
    chart: str,
    data: str,
) -> str:
    cleared = [item for result in results['usual'] for item in result.cleared]
    missed = sum(item.verdict == 'missed' for item in cleared)
    aims = sum(item.verdict == 'aim' for item in cleared)
    return '\n\n'.join(
        [
            '## The bars',
            f'{machine_text(settings)} in the first column of ratios, and kept and given back at '
            'once in the last two; medians of at least '
            f'{settings["repetitions"]} turns, and in the first column of {processes} process(es) '
            'for each contest, whose smallest and largest ratio stand beside it.',
            f'Of {len(cleared)} bars {len(cleared) - missed} are cleared, {aims} of them to the '
            f'aim; {missed} {"is" if missed == 1 else "are"} missed.',
            bars_markdown(results),
            f'![Every bar, measured over must]({chart})',
            f'All figures of all processes: [{data}]({data}).',
            '## The figures, default allocator',
            figures_markdown(results['usual']),
        ]
    )
