"""The measured part of docs/performance.md, written by one command.

With the allocator as it is, each contest has a process of its own, since what others before it
freed would decide which memory is kept for it, and several such processes, since that is another
thing in each: a contest whose ratios come out on both sides of a bar, or of which some do not
count, gets some more. One process keeps all freed memory and one returns all, which are the two
ends, and change a process for good. What each process measured stays in a folder until the page is
written. The page's own words stay; what is between the two marks is replaced, with the chart and
the data beside it.
"""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..visualization.report import write_text
from .contest import Contest
from .results import Result, bars_markdown, figures_markdown, results_of_data, results_of_processes
from .text import machine_text

BEGIN = '<!-- measured by kronattn bench: what stands below is replaced -->'
END = '<!-- end of what was measured -->'
# Processes that count of a contest whose ratios lie on both sides of a bar, or do not all count, to
# those of the others; and all of its processes at most, since in some every one may not count.
MORE, MOST = 3, 9


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


def folder_of(page: Path) -> Path:
    """Return the folder in which measurements for a page are kept until it is written."""
    return page.with_suffix('.measured')


def check_folder(page: Path, resume: bool) -> None:
    """Raise PageError where a run that ended early has left measurements, or should have.

    Args:
        page (Path): The page.
        resume (bool): They are to be taken up.
    """
    folder = folder_of(page)
    if folder.exists() and not resume:
        raise PageError(
            f'{folder} has what a run that ended early had measured: take it up with --resume, or '
            'delete it'
        )
    if resume and not folder.is_dir():
        raise PageError(f'there is nothing to resume: {folder} does not exist')


def measure_in_processes(
    contests: Sequence[Contest], options: Sequence[str], processes: int, folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Measure contests in processes of their own, one after the other.

    Args:
        contests (Sequence[Contest]): All of them, of which some are for one allocator only.
        options (Sequence[str]): Further options of ``kronattn bench``.
        processes (int): How many measure each contest with the allocator as it is; it is
            :data:`MORE` times as many that count, of :data:`MOST` times as many at most, for those
            whose ratios lie on both sides of a bar or do not all count.
        folder (Path): Where what each process measures is kept. What is there already is taken
            instead of measuring it.

    Returns:
        dict[str, list[dict]]: What ``--json`` writes of contests, by what becomes of freed memory:
        ``'usual'`` (one for each round of processes, of which the last may not have all contests),
        ``'kept'`` and ``'returned'`` (one each).

    Raises:
        PageError: If one of the processes fails, or if they differ in machine or settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    every = [contest.key for contest in contests]
    some = [contest.key for contest in contests if contest.all_allocators]
    process = _Process(folder, options)
    usual = [process.round(every, number) for number in range(processes)]
    wanting = {
        result.title
        for result in _medians(usual)
        if any(cleared.is_open for cleared in result.cleared)
    }
    for number in range(processes, MOST * processes):
        wanting -= {
            result.title
            for result in _medians(usual)
            if all(cleared.counted >= MORE * processes for cleared in result.cleared)
        }
        if not wanting:
            break
        keys = [contest.key for contest in contests if contest.title in wanting]
        usual.append(process.round(keys, number))
    measured = dict(
        usual=usual,
        kept=[process.measure(some, 'kept', 'kept')],
        returned=[process.measure(some, 'returned', 'returned')],
    )
    _check_settings([run for runs in measured.values() for run in runs])
    return measured


@dataclass(frozen=True)
class _Process:
    """Measures in processes and keeps what they write.

    Attributes:
        folder: Where it is kept.
        options: Further options of ``kronattn bench``.
    """

    folder: Path
    options: Sequence[str]

    def round(self, keys: Sequence[str], number: int) -> dict[str, Any]:
        """Return what ``--json`` writes of contests that have one process each."""
        runs = [self.measure([key], 'usual', f'{number}-{key}') for key in keys]
        _check_settings(runs)
        return {**runs[0], 'contests': [contest for run in runs for contest in run['contests']]}

    def measure(self, keys: Sequence[str], memory: str, name: str) -> dict[str, Any]:
        """Return what ``--json`` writes of contests that one process measures."""
        file = self.folder / f'{name}.json'
        if not file.is_file():
            command = [sys.executable, '-m', 'kronattn_mm', 'bench', '--contests', *keys]
            command += [*self.options, '--memory', memory, '--json', str(file)]
            done = subprocess.run(command, stdout=subprocess.DEVNULL)
            if done.returncode:
                rest = f'; what others measured is in {self.folder} (--resume)'
                if not any(self.folder.iterdir()):
                    self.folder.rmdir()
                    rest = ''
                raise PageError(
                    f'a process that measures {", ".join(keys)} ended with exit code '
                    f'{done.returncode}{rest}'
                )
        return json.loads(file.read_text(encoding='utf-8'))


def _medians(runs: Sequence[Mapping[str, Any]]) -> list[Result]:
    """Return the medians of what ``--json`` wrote in several processes."""
    return results_of_processes([results_of_data(run['contests']) for run in runs])


def _check_settings(runs: Sequence[Mapping[str, Any]]) -> None:
    """Raise PageError if processes that go on one page differ in more than the allocator."""
    first, *others = ({**run['settings'], 'memory': None} for run in runs)
    for settings in others:
        for name in first:
            if settings[name] != first[name]:
                raise PageError(
                    f'measured with different settings: {name} is {first[name]!r} and '
                    f'{settings[name]!r}'
                )


def write_page(page: Path, measured: Mapping[str, Sequence[dict[str, Any]]]) -> list[Path]:
    """Put measured contests into a page, and write the chart and the data beside it.

    The folder in which measurements were kept is deleted.

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
    results = {memory: _medians(runs) for memory, runs in measured.items()}
    settings = measured['usual'][0]['settings']
    chart = page.parent / 'images' / f'{page.stem}.png'
    data = page.with_suffix('.json')
    before, _, rest = page.read_text(encoding='utf-8').partition(BEGIN)
    after = rest.partition(END)[2]
    chart.parent.mkdir(exist_ok=True)
    draw_bars(chart, results, machine_text(settings))
    write_text(data, json.dumps(measured, indent=1) + '\n')
    of_contests = Counter(c['title'] for run in measured['usual'] for c in run['contests'])
    processes = Counter(of_contests.values())
    text = _measured(results, settings, processes, f'images/{chart.name}', data.name)
    write_text(page, f'{before}{BEGIN}\n\n{text}\n\n{END}{after}')
    shutil.rmtree(folder_of(page), ignore_errors=True)
    return [page, chart, data]


def _measured(
    results: Mapping[str, Sequence[Result]],
    settings: dict[str, Any],
    processes: Counter[int],
    chart: str,
    data: str,
) -> str:
    cleared = [item for result in results['usual'] for item in result.cleared]
    missed = sum(item.verdict == 'missed' for item in cleared)
    aims = sum(item.verdict == 'aim' for item in cleared)
    fewest, *more = sorted(processes)
    contests = f'{fewest} process(es) for each contest'
    if more:
        numbers = f'{more[0]} to {more[-1]}' if len(more) > 1 else f'{more[0]}'
        opened = f'{processes.total() - processes[fewest]} of {processes.total()} contests'
        contests += f' ({numbers} for the {opened} whose ratios lay on both sides of a bar in the '
        contests += f'first {fewest} or did not all count, until {MORE * fewest} counted)'
    return '\n\n'.join(
        [
            '## The bars',
            f'{machine_text(settings)} in the first column of ratios, and kept and given back at '
            'once in the last two; medians of at least '
            f'{settings["repetitions"]} turns, and in the first column of {contests}, whose '
            'number, smallest and largest ratio stand beside it.',
            f'Of {len(cleared)} bars {len(cleared) - missed} are cleared, {aims} of them to the '
            f'aim; {missed} {"is" if missed == 1 else "are"} missed.',
            bars_markdown(results),
            f'![Every bar, measured over must]({chart})',
            f'All figures of all processes: [{data}]({data}).',
            '## The figures, default allocator',
            figures_markdown(results['usual']),
        ]
    )
