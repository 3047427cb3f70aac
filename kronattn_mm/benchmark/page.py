"""The measured part of docs/performance.md, written by one command.

Several processes measure the same contests with the allocator as it is, since what it keeps is
another thing in each; one more keeps all freed memory, which changes a process for good. The page's
own words stay; what is between the two marks is replaced, with the chart and the data beside it.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
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
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Measure contests in processes of their own, one after the other.

    Args:
        contests (Sequence[Contest]): All of them, of which some are for one allocator only.
        options (Sequence[str]): Further options of ``kronattn bench``.
        processes (int): How many measure with the allocator as it is.

    Returns:
        tuple[list[dict], dict]: What ``--json`` writes, of each process with the allocator as it is
        and of the one with freed memory kept.

    Raises:
        PageError: If one of the processes fails.
    """
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        for keep in [False] * processes + [True]:
            file = Path(folder) / f'{len(measured)}.json'
            keys = [contest.key for contest in contests if contest.both_allocators or not keep]
            command = [sys.executable, '-m', 'kronattn_mm', 'bench', '--contests', *keys, *options]
            command += ['--keep-memory'] * keep
            done = subprocess.run([*command, '--json', str(file)], stdout=subprocess.DEVNULL)
            if done.returncode:
                raise PageError(f'a process that measures ended with exit code {done.returncode}')
            measured.append(json.loads(file.read_text(encoding='utf-8')))
    return measured[:-1], measured[-1]


def write_page(page: Path, default: Sequence[dict[str, Any]], kept: dict[str, Any]) -> list[Path]:
    """Put measured contests into a page, and write the chart and the data beside it.

    Args:
        page (Path): Markdown file with the two marks.
        default (Sequence[dict]): Measured with the allocator as it is, as ``--json`` writes it, by
            one process or several, of which the medians are taken.
        kept (dict): Measured with freed memory kept.

    Returns:
        list[Path]: The files that were written.

    Raises:
        PageError: If the page lacks the marks.
        OSError: If a file cannot be written.
    """
    from ..visualization.benchmark_chart import draw_bars

    check_page(page)
    results = results_of_processes([results_of_data(run['contests']) for run in default])
    others, settings = results_of_data(kept['contests']), default[0]['settings']
    chart = page.parent / 'images' / f'{page.stem}.png'
    data = page.with_suffix('.json')
    before, _, rest = page.read_text(encoding='utf-8').partition(BEGIN)
    after = rest.partition(END)[2]
    chart.parent.mkdir(exist_ok=True)
    draw_bars(chart, results, others, machine_text(settings))
    write_text(data, json.dumps(dict(default=default, kept=kept), indent=1) + '\n')
    measured = _measured(results, others, settings, len(default), f'images/{chart.name}', data.name)
    write_text(page, f'{before}{BEGIN}\n\n{measured}\n\n{END}{after}')
    return [page, chart, data]


def _measured(
    results: Sequence[Result],
    kept: Sequence[Result],
    settings: dict[str, Any],
    processes: int,
    chart: str,
    data: str,
) -> str:
    cleared = [item for result in results for item in result.cleared]
    missed = sum(item.verdict == 'missed' for item in cleared)
    aims = sum(item.verdict == 'aim' for item in cleared)
    return '\n\n'.join(
        [
            '## The bars',
            f'{machine_text(settings)} in the first column of ratios and kept in the other; '
            f'medians of at least {settings["repetitions"]} turns, and in the first column of '
            f'{processes} process(es), whose smallest and largest ratio stand beside it.',
            f'Of {len(cleared)} bars {len(cleared) - missed} are cleared, {aims} of them to the '
            f'aim; {missed} are missed.',
            bars_markdown(results, kept),
            f'![Every bar, measured over must]({chart})',
            f'All figures, also those with large blocks kept: [{data}]({data}).',
            '## The figures, default allocator',
            figures_markdown(results),
        ]
    )
