"""Functions that do the same, or nearly, in turns; their figures; and the bars they have to clear.

A contest is one run: ratios are only ever taken between functions of the same one. Where it says
how many multiply-accumulates the work needs, the rates of the machine are measured in the same
turns, and the floor is the time below which nothing on this machine can get.
"""

import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from .measure import Time, kept_for_backward, operator_calls, peak_memory, time_interleaved

# Sides of the square matrices whose product gives the rate of products, elements whose
# exponentials give that of exponentials: both stay in a core's own cache or nearly.
_SIDE, _ELEMENTS = 1024, 1 << 18
COPY, CLONE, PRODUCT, EXPONENTIAL = (
    'copy into a ready buffer',
    'clone into fresh memory',
    f'matrix product {_SIDE}^3',
    f'{_ELEMENTS} exponentials',
)
FLOOR = 'floor'


@dataclass(frozen=True)
class Contestant:
    """One function.

    Attributes:
        name: As in the tables.
        run: The function.
        inputs: What is there before a call; it does not count as kept for the backward pass.
        training: It runs forward and backward.
        compiled: It is made by torch.compile, whose operators cannot be counted.
    """

    name: str
    run: Callable[[], Any]
    inputs: tuple[Tensor, ...] = ()
    training: bool = False
    compiled: bool = False


@dataclass(frozen=True)
class Needs:
    """What the work needs at least, whoever does it.

    Attributes:
        macc: Multiply-accumulates.
        data: The map that is read; as much is written.
        exponentials: Exponentials; they are shown beside the floor and not part of it.
    """

    macc: int
    data: Tensor
    exponentials: int = 0


@dataclass(frozen=True)
class Entry:
    """Who takes part in a contest, built when it starts so that nothing is held before and after.

    Attributes:
        contestants: The functions.
        needs: What the floor is worked out from; None for no floor.
    """

    contestants: Sequence[Contestant]
    needs: Needs | None = None


@dataclass(frozen=True)
class Bar:
    """A ratio between two contestants that is to be reached.

    Attributes:
        what: What it says, in a few words.
        numerator: Name of a contestant.
        denominator: Name of another, or ``FLOOR``.
        must: The bar.
        aim: What the best known would reach.
        at_least: The ratio has to be at least the bar (a gain); otherwise at most (a cost).
        figure: ``'time'``, ``'kept'`` (bytes for the backward pass) or ``'peak'`` (bytes).
        fresh: Name of a contestant whose memory has to come anew in each call. Of several processes
            those in which the allocator happens to keep it are held apart.
    """

    what: str
    numerator: str
    denominator: str
    must: float
    aim: float
    at_least: bool = True
    figure: str = 'time'
    fresh: str | None = None


@dataclass(frozen=True)
class Contest:
    """A contest of the page of performance.

    Attributes:
        key: Its name on the command line.
        title: What is done, on what.
        enter: Builds who takes part, on a device.
        bars: What is to be reached.
        repetitions: Turns at least: functions of a millisecond need more of them.
        all_allocators: Measured with freed memory kept and given back as well, for the page.
    """

    key: str
    title: str
    enter: Callable[[str], Entry]
    bars: tuple[Bar, ...] = ()
    repetitions: int | None = None
    all_allocators: bool = True


@dataclass(frozen=True)
class Figures:
    """What was measured of a contestant.

    Attributes:
        time: Of one call.
        peak: Most bytes in use at one time beyond what was there before; None for the floor.
        calls: Operators that it runs; None if they cannot be counted.
        kept: Bytes kept for the backward pass beside the inputs; None without one.
    """

    time: Time
    peak: int | None = None
    calls: int | None = None
    kept: int | None = None


@dataclass(frozen=True)
class Cleared:
    """A bar and what was measured.

    Attributes:
        bar: The bar.
        value: The ratio of the medians.
        verdict: ``'aim'``, ``'must'`` or ``'missed'``: the highest that was reached.
        limit: The gain that a form as fast as the floor would have, or the cost of one; None
            without a floor.
        kept: The allocator kept what ``bar.fresh`` frees: less than half of the memory that this
            has in use came anew.
        processes: Ratios of several processes from small to large, where ``value`` is their median;
            None of one process.
        when_kept: Ratios of the processes that were held apart, from small to large.
    """

    bar: Bar
    value: float
    verdict: str
    limit: float | None = None
    kept: bool = False
    processes: tuple[float, ...] | None = None
    when_kept: tuple[float, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether some of the processes reach ``must`` and others do not, or some do not count."""
        ratios = self.processes or (self.value,)
        return self.kept or bool(self.when_kept) or ratios[0] < self.bar.must < ratios[-1]

    @property
    def counted(self) -> int:
        """Processes that count."""
        return 0 if self.kept else len(self.processes or (self.value,))


def run_contest(
    entry: Entry,
    repetitions: int = 15,
    device: str = 'cpu',
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Figures]:
    """Measure who takes part in a contest.

    Args:
        entry (Entry): The functions, and what the floor is worked out from.
        repetitions (int): Turns, of which the median is taken. Defaults to 15.
        device (str): ``'cpu'`` or a CUDA device. Defaults to ``'cpu'``.
        progress (Callable): Called after each turn of each function.

    Returns:
        dict[str, Figures]: By name; with needs, the machine's rates and the floor come last.
    """
    functions = {contestant.name: contestant.run for contestant in entry.contestants}
    if len(functions) != len(entry.contestants):
        raise ValueError(f'contestants need names of their own, got {list(functions)}')
    if entry.needs is not None:
        functions |= _rates(entry.needs, device)
    # The clock comes first: what a profiler leaves in memory changes which memory is given back.
    times = time_interleaved(functions, repetitions, device=device, progress=progress)
    further = {
        contestant.name: dict(
            peak=peak_memory(contestant.run, device),
            calls=None if contestant.compiled else operator_calls(contestant.run, device),
            kept=kept_for_backward(contestant.run, contestant.inputs)
            if contestant.training
            else None,
        )
        for contestant in entry.contestants
    }
    figures = {name: Figures(time, **further.get(name, {})) for name, time in times.items()}
    if entry.needs is not None:
        figures[FLOOR] = Figures(_floor(entry.needs, times))
    return figures


def turns(entry: Entry) -> int:
    """Return how many functions take turns, for a progress bar."""
    return len(entry.contestants) + (0 if entry.needs is None else 4)


def judge(contest: Contest, figures: Mapping[str, Figures]) -> list[Cleared]:
    """Hold the figures of a contest against its bars."""
    judged = []
    for bar in contest.bars:
        above, below = (
            _figure(figures[name], bar.figure) for name in (bar.numerator, bar.denominator)
        )
        value = above / below
        sign = 1 if bar.at_least else -1
        reached = [name for name in ('aim', 'must') if sign * value >= sign * getattr(bar, name)]
        limit = None
        if bar.figure == 'time' and FLOOR in figures and FLOOR != bar.denominator:
            floor = figures[FLOOR].time.wall
            limit = above / floor if bar.at_least else floor / below
        kept = bar.fresh is not None and _keeps(figures[bar.fresh])
        judged.append(Cleared(bar, value, reached[0] if reached else 'missed', limit, kept))
    return judged


def _keeps(figures: Figures) -> bool:
    """Say whether the allocator keeps what a contestant frees."""
    if figures.time.faults is None or figures.peak is None:
        return False
    return figures.time.faults * mmap.PAGESIZE < figures.peak / 2


def median_of_processes(runs: Sequence[Cleared]) -> Cleared:
    """Return the median of one bar's ratios, and of two in the middle the worse.

    Processes in which the allocator kept what it should not are held apart, if there are others.

    Args:
        runs (Sequence[Cleared]): The same bar, measured in several processes.
    """
    # From the best to the worst.
    ordered = sorted(runs, key=attrgetter('value'), reverse=runs[0].bar.at_least)
    counted, apart = ([c for c in ordered if c.kept is kept] for kept in (False, True))
    if not counted:
        counted, apart = apart, []
    processes, when_kept = (
        tuple(sorted(cleared.value for cleared in of_state)) for of_state in (counted, apart)
    )
    return replace(counted[len(counted) // 2], processes=processes, when_kept=when_kept)


def _figure(figures: Figures, name: str) -> float:
    return figures.time.wall if name == 'time' else getattr(figures, name)


def _rates(needs: Needs, device: str) -> dict[str, Callable[[], Any]]:
    data = needs.data.detach()
    ready = torch.empty_like(data)
    ready.copy_(data)
    side = torch.randn(2, _SIDE, _SIDE).to(device, data.dtype)
    product = torch.empty_like(side[0])
    elements = torch.randn(_ELEMENTS).to(device, data.dtype)
    result = torch.empty_like(elements)
    return {
        COPY: lambda: ready.copy_(data),
        CLONE: data.clone,
        PRODUCT: lambda: torch.mm(side[0], side[1], out=product),
        EXPONENTIAL: lambda: torch.exp(elements, out=result),
    }


def _floor(needs: Needs, times: Mapping[str, Time]) -> Time:
    """The longer of the products at the machine's rate and of one copy of the map."""
    shares = {PRODUCT: needs.macc / _SIDE**3, COPY: 1.0}
    longest = max(shares, key=lambda name: times[name].wall * shares[name])
    time, share = times[longest], shares[longest]
    return replace(
        time,
        wall=time.wall * share,
        cpu=None if time.cpu is None else time.cpu * share,
        fastest=time.fastest * share,
        quartiles=(time.quartiles[0] * share, time.quartiles[1] * share),
    )
