"""Measured contests as plain text, as Markdown, and as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..cost.quantity import quantity
from ..cost.text import plain_table
from .contest import CLONE, COPY, EXPONENTIAL, FLOOR, PRODUCT, Cleared, Figures, median_of_processes

_NONE = '-'
_HEADER = (
    'time\nms',
    'half of the\nturns in',
    'time\nratio',
    'CPU time\nms',
    'peak\nbytes',
    'kept\nbytes',
    'operators',
    'page\nfaults',
)
# What makes the rate of a machine out of a time: unit, and how much one call does.
_RATES = {PRODUCT: ('GFLOP/s', 2 * 1024**3 / 1e9), EXPONENTIAL: ('G/s', (1 << 18) / 1e9)}


@dataclass(frozen=True)
class Result:
    """A contest that was measured.

    Attributes:
        title: What was done, on what.
        figures: By contestant; ratios are taken to the first.
        cleared: Its bars.
        left_out: Why who was named did not take part.
    """

    title: str
    figures: Mapping[str, Figures]
    cleared: Sequence[Cleared] = ()
    left_out: Mapping[str, str] | None = None


def results_of_processes(runs: Sequence[Sequence[Result]]) -> list[Result]:
    """Return the medians of contests that were measured in several processes.

    A bar's ratio is the median of theirs; the figures are those of the process in which the first
    bar of the contest was at its median, since only figures of one process go together.

    Args:
        runs (Sequence[Sequence[Result]]): The contests from each process. Not all have all.
    """
    contests: dict[str, list[Result]] = {}
    for result in (result for run in runs for result in run):
        contests.setdefault(result.title, []).append(result)
    medians = []
    for results in contests.values():
        bars = [median_of_processes(bar) for bar in zip(*(r.cleared for r in results), strict=True)]
        middle = results[0]
        if bars:
            middle = next(r for r in results if r.cleared[0].value == bars[0].value)
        medians.append(replace(middle, cleared=bars))
    return medians


def results_text(results: Sequence[Result]) -> str:
    """Lay out contests for a terminal: one block each."""
    rows = []
    for result in results:
        rows += [[result.title, *row] for row in _rows(result)]
        rows += [
            [result.title, name, f'left out: {why}', *[''] * (len(_HEADER) - 1)]
            for name, why in (result.left_out or {}).items()
        ]
    return plain_table(['map', 'form', *_HEADER], rows, left=2)


def bars_text(results: Sequence[Result]) -> str:
    """Lay out the bars of contests for a terminal."""
    rows = [
        [
            cleared.bar.what,
            f'{cleared.value:.3g}x',
            _bar(cleared, 'must'),
            _bar(cleared, 'aim'),
            _limit(cleared),
            cleared.verdict,
        ]
        for result in results
        for cleared in result.cleared
    ]
    return plain_table(['what', 'measured', 'must', 'aim', 'floor', 'reached'], rows, left=1)


def bars_markdown(results: Mapping[str, Sequence[Result]]) -> str:
    """Return a Markdown table of the bars.

    Args:
        results (Mapping): The same contests by what becomes of freed memory: ``'usual'``, by which
            the bars are judged, and beside it ``'kept'`` and ``'returned'``, which may have fewer.
    """
    usual, kept, returned = (
        {cleared.bar: cleared for result in results[memory] for cleared in result.cleared}
        for memory in ('usual', 'kept', 'returned')
    )
    rows = [
        [
            bar.what,
            f'{cleared.value:.3g}x',
            _spread(cleared.processes),
            _spread(cleared.when_kept),
            _bar(cleared, 'must'),
            _bar(cleared, 'aim'),
            _limit(cleared),
            {'aim': 'aim reached', 'must': 'must reached', 'missed': '**missed**'}[cleared.verdict],
            *(
                f'{others[bar].value:.3g}x' if bar in others else _NONE
                for others in (kept, returned)
            ),
        ]
        for bar, cleared in usual.items()
    ]
    header = ['what', 'default allocator', 'in processes', 'in those where it keeps']
    header += ['must', 'aim', 'at the floor', 'reached', 'all kept', 'all given back']
    return _markdown(header, rows, left=1)


def figures_markdown(results: Sequence[Result]) -> str:
    """Return Markdown tables of the figures, one a contest."""
    header = [title.replace('\n', ' ') for title in _HEADER]
    blocks = []
    for result in results:
        rows = [[name, *row] for name, *row in _rows(result)]
        blocks.append(f'### {result.title}\n\n{_markdown(["form", *header], rows, left=1)}')
    return '\n\n'.join(blocks)


def results_data(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return contests as data for JSON; times in seconds, memory in bytes."""
    return [
        dict(
            title=result.title,
            figures={name: asdict(figures) for name, figures in result.figures.items()},
            bars=[asdict(cleared) for cleared in result.cleared],
            left_out=dict(result.left_out or {}),
        )
        for result in results
    ]


def results_of_data(data: Sequence[Mapping[str, Any]]) -> list[Result]:
    """Return what :func:`results_data` wrote."""
    from .contest import Bar
    from .measure import Time

    def figures(entry: Mapping[str, Any]) -> Figures:
        time = {**entry['time'], 'quartiles': tuple(entry['time']['quartiles'])}
        return Figures(**{**entry, 'time': Time(**time)})

    def cleared(entry: Mapping[str, Any]) -> Cleared:
        processes = entry['processes'] and tuple(entry['processes'])
        apart = dict(processes=processes, when_kept=tuple(entry['when_kept']))
        return Cleared(**{**entry, 'bar': Bar(**entry['bar']), **apart})

    return [
        Result(
            item['title'],
            {name: figures(entry) for name, entry in item['figures'].items()},
            [cleared(entry) for entry in item['bars']],
            item['left_out'],
        )
        for item in data
    ]


def _rows(result: Result) -> list[list[str]]:
    first = next(iter(result.figures.values())).time.wall
    rows = []
    for name, figures in result.figures.items():
        time = figures.time
        rate = _rate(name, time.wall)
        rows.append(
            [
                name,
                milliseconds(time.wall),
                ' to '.join(map(milliseconds, time.quartiles)),
                rate or f'{time.wall / first:.2f}x',
                milliseconds(time.cpu),
                _amount(figures.peak),
                _amount(figures.kept),
                _NONE if figures.calls is None else str(figures.calls),
                _NONE if time.faults is None else f'{time.faults:.0f}',
            ]
        )
    return rows


def _rate(name: str, wall: float) -> str | None:
    if name in (COPY, CLONE, FLOOR) or name not in _RATES:
        return None
    unit, amount = _RATES[name]
    return f'{amount / wall:.3g} {unit}'


def _bar(cleared: Cleared, name: str) -> str:
    sign = '>=' if cleared.bar.at_least else '<='
    return f'{sign} {getattr(cleared.bar, name):g}x'


def _spread(ratios: Sequence[float] | None) -> str:
    if not ratios:
        return _NONE
    return f'{len(ratios)}: {ratios[0]:.3g} to {ratios[-1]:.3g}x'


def _limit(cleared: Cleared) -> str:
    return _NONE if cleared.limit is None else f'{cleared.limit:.3g}x'


def _amount(value: int | None) -> str:
    return _NONE if value is None else quantity(max(value, 0))


def milliseconds(seconds: float | None) -> str:
    """Format a time in milliseconds with three digits."""
    if seconds is None:
        return _NONE
    value = 1000 * seconds
    return f'{value:.0f}' if value >= 1000 else f'{value:.3g}'


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    rule = ['---'] * left + ['---:'] * (len(header) - left)
    return '\n'.join(f'| {" | ".join(row)} |' for row in [header, rule, *rows])
