"""Contests: what is measured of their members, and how bars are judged."""

import dataclasses
import json
import mmap
import sys

import pytest
import torch

from kronattn_mm.benchmark import Bar, Contest, Contestant, Entry, Needs, judge, run_contest
from kronattn_mm.benchmark.contest import CLONE, COPY, EXPONENTIAL, FLOOR, PRODUCT, Figures, turns
from kronattn_mm.benchmark.contests import CONTESTS
from kronattn_mm.benchmark.measure import Time, kept_for_backward, operator_calls, time_interleaved
from kronattn_mm.benchmark.results import (
    Result,
    bars_markdown,
    bars_text,
    figures_markdown,
    results_data,
    results_of_data,
    results_of_processes,
    results_text,
)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def figures(wall, kept=None, peak=None):
    return Figures(Time(wall, wall, wall, (wall, wall)), peak, None, kept)


def test_operators_are_counted_without_views():
    x = torch.randn(4, 6)
    assert operator_calls(lambda: (x.T @ x).flatten().exp()) == 2
    assert operator_calls(lambda: x.view(6, 4)[1:].T) == 0


def test_kept_bytes_are_counted_once_and_without_inputs():
    weight, x = torch.randn(8, 8, requires_grad=True), torch.randn(3, 8)

    def forward_and_backward():
        y = (x @ weight).exp()  # keeps x, weight and its own result
        (y * y.view(3, 8)).sum().backward()  # the same storage again

    assert kept_for_backward(forward_and_backward, (x, weight)) == 4 * 3 * 8
    assert kept_for_backward(forward_and_backward, (weight,)) == 2 * 4 * 3 * 8


def test_quartiles_enclose_the_median():
    time = time_interleaved({'a': lambda: sum(range(100))}, 9, shortest=1e-4)['a']
    assert time.fastest <= time.quartiles[0] <= time.wall <= time.quartiles[1]


def test_a_contest_measures_its_members_and_the_machine():
    x = torch.randn(256, 256)
    entry = Entry(
        [
            Contestant('product', lambda: x @ x, (x,)),
            Contestant('compiled', lambda: x + x, (x,), compiled=True),
        ],
        Needs(256**3, x),
    )
    done = []
    measured = run_contest(entry, 3, progress=lambda: done.append(1))
    assert list(measured) == ['product', 'compiled', COPY, CLONE, PRODUCT, EXPONENTIAL, FLOOR]
    assert len(done) == 3 * turns(entry)
    assert measured['product'].calls == 1 and measured['compiled'].calls is None
    assert measured['product'].peak == 4 * 256**2
    assert measured['product'].kept is None
    product = measured[PRODUCT].time.wall / 64  # 1024^3 has 64 times the products
    assert measured[FLOOR].time.wall == pytest.approx(max(product, measured[COPY].time.wall))


def test_two_members_of_one_name():
    with pytest.raises(ValueError, match='names of their own'):
        run_contest(Entry([Contestant('a', list), Contestant('a', list)]), 1)


@pytest.mark.parametrize(
    'value, verdict', [(2.6, 'aim'), (2.5, 'aim'), (2.3, 'must'), (2.2, 'must'), (2.1, 'missed')]
)
def test_a_gain_is_judged(value, verdict):
    contest = Contest('k', 't', None, (Bar('gain', 'slow', 'fast', 2.2, 2.5),))
    (cleared,) = judge(contest, dict(slow=figures(value), fast=figures(1.0)))
    assert cleared.verdict == verdict and cleared.value == value and cleared.limit is None


@pytest.mark.parametrize('value, verdict', [(1.0, 'aim'), (1.1, 'must'), (1.3, 'missed')])
def test_a_cost_is_judged(value, verdict):
    contest = Contest('k', 't', None, (Bar('cost', 'mine', 'plain', 1.2, 1.0, at_least=False),))
    (cleared,) = judge(contest, dict(mine=figures(value), plain=figures(1.0)))
    assert cleared.verdict == verdict


def test_bytes_are_judged_and_the_floor_shows_what_is_possible():
    bars = (
        Bar('kept', 'mine', 'theirs', 0.26, 0.02, at_least=False, figure='kept'),
        Bar('gain', 'theirs', 'mine', 2.0, 3.0),
        Bar('over the floor', 'mine', FLOOR, 2.0, 1.4, at_least=False),
    )
    measured = dict(mine=figures(2.0, kept=10), theirs=figures(4.0, kept=100))
    measured[FLOOR] = figures(1.0)
    kept, gain, floor = judge(Contest('k', 't', None, bars), measured)
    assert (kept.value, kept.verdict, kept.limit) == (0.1, 'must', None)
    assert (gain.value, gain.limit) == (2.0, 4.0)
    assert (floor.value, floor.limit) == (2.0, None)


def test_results_survive_json_and_show_what_lost():
    bars = (Bar('gain | of a', 'b', 'a', 2.0, 3.0),)
    measured = dict(a=figures(0.002, kept=10, peak=2**20), b=figures(0.001))
    result = Result(
        'on a map', measured, judge(Contest('k', 't', None, bars), measured), {'c': 'x'}
    )
    again = results_of_data(json.loads(json.dumps(results_data([result]))))
    assert again == [result]
    text = results_text([result])
    assert '0.50x' in text and 'left out: x' in text and '1.05 M' in text
    assert 'missed' in bars_text([result]) and '>= 2x' in bars_text([result])
    markdown = bars_markdown(dict(usual=[result], kept=[], returned=[]))
    assert '**missed**' in markdown and markdown.count('\n') == 2
    assert '### on a map' in figures_markdown([result])


@pytest.mark.parametrize(
    'at_least, values, median, verdict',
    [
        (True, [3, 1, 2.5], 2.5, 'must'),
        (True, [3, 1], 1, 'missed'),  # of two in the middle the worse
        (False, [1, 3], 3, 'missed'),
        (False, [2.1], 2.1, 'missed'),
        (False, [1, 1.5, 9, 1.2], 1.5, 'must'),
    ],
)
def test_the_median_of_processes(at_least, values, median, verdict):
    bar = Bar('what', 'a', 'b', 2, 5 if at_least else 1, at_least)
    contest, runs = Contest('key', 'title', None, (bar,)), []
    for value in values:
        measured = {'a': figures(value), 'b': figures(1)}
        runs.append(
            [Result('title', measured, judge(contest, measured)), Result('no bars', measured)]
        )
    (result, other) = results_of_processes(runs)
    (cleared,) = result.cleared
    assert (cleared.value, cleared.verdict) == (median, verdict)
    assert cleared.processes == tuple(sorted(values)) and not cleared.when_kept
    assert result.figures['a'].time.wall == median, 'figures of the process that is shown'
    assert other == runs[0][1] or other.figures is runs[0][1].figures
    again = results_of_data(json.loads(json.dumps(results_data([result]))))
    assert again[0].cleared == [cleared]
    spread = f'{len(values)}: {min(values):.3g} to {max(values):.3g}x'
    assert spread in bars_markdown(dict(usual=[result], kept=[], returned=[]))


def test_processes_in_which_the_allocator_keeps_are_held_apart():
    bar = Bar('what', 'a', 'b', 2, 5, fresh='a')
    contest = Contest('key', 'title', None, (bar,))

    def judged(wall, pages):
        time = Time(wall, wall, wall, (wall, wall), pages)
        measured = {'a': Figures(time, 8 * mmap.PAGESIZE), 'b': figures(1)}
        return [Result('title', measured, judge(contest, measured))]

    runs = [judged(1.2, 3), judged(2.5, 4), judged(1.1, 0), judged(2.1, 9)]
    assert [run[0].cleared[0].kept for run in runs] == [True, False, True, False]
    ((result,), (kept,)) = results_of_processes(runs), results_of_processes([runs[0], runs[2]])
    (cleared,) = result.cleared
    assert (cleared.value, cleared.verdict) == (2.1, 'must')
    assert (cleared.processes, cleared.when_kept) == ((2.1, 2.5), (1.1, 1.2))
    assert cleared.is_open and cleared.counted == 2 and result.figures['a'].time.faults == 9
    # There is nothing that they could be held apart from.
    assert kept.cleared[0].processes == (1.1, 1.2) and not kept.cleared[0].when_kept
    assert kept.cleared[0].is_open and kept.cleared[0].counted == 0
    (half,) = results_of_processes([judged(1.2, 3), judged(1.3, 4)])
    assert half.cleared[0].is_open and half.cleared[0].processes == (1.3,)
    again = results_of_data(json.loads(json.dumps(results_data([result]))))
    assert again[0].cleared == [cleared]
    row = bars_markdown(dict(usual=[result], kept=[], returned=[])).splitlines()[-1]
    assert '| 2.1x | 2: 2.1 to 2.5x | 2: 1.1 to 1.2x |' in row


@pytest.mark.skipif(sys.platform == 'win32', reason='pages are counted by Unix')
def test_pages_that_are_handed_out_are_counted():
    def touch():
        with mmap.mmap(-1, 64 * mmap.PAGESIZE) as memory:
            memory[:] = bytes(len(memory))

    times = time_interleaved({'much': touch, 'little': lambda: None}, 3, shortest=0)
    assert times['much'].faults >= 64 > 8 > times['little'].faults


def test_contests_of_the_page():
    keys = [contest.key for contest in CONTESTS]
    for key in keys:  # the command takes beginnings of keys
        assert [other for other in keys if other.startswith(key)] == [key]
    bars = [bar for contest in CONTESTS for bar in contest.bars]
    names = [bar.what for bar in bars]
    assert len(set(names)) == len(names), 'the chart and the table tell bars apart by what they say'
    for bar in bars:
        assert bar.aim >= bar.must if bar.at_least else bar.aim <= bar.must


@pytest.mark.parametrize(
    'key', [contest.key for contest in CONTESTS if contest.key.startswith('ea-small')]
)
def test_bars_name_members_of_their_contest(key):
    (contest,) = (item for item in CONTESTS if item.key == key)
    entry = contest.enter('cpu')
    names = {contestant.name for contestant in entry.contestants} | {FLOOR}
    for bar in contest.bars:
        assert {bar.numerator, bar.denominator} <= names
    for contestant in entry.contestants:
        contestant.run()


@pytest.mark.slow
@pytest.mark.parametrize('contest', CONTESTS, ids=lambda contest: contest.key)
def test_every_contest_runs(contest):
    entry = contest.enter('cpu')
    without = [member for member in entry.contestants if not member.compiled]
    measured = run_contest(dataclasses.replace(entry, contestants=without), 1)
    assert len(judge(contest, measured)) == len(contest.bars)
