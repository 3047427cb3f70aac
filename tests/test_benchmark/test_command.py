"""`kronattn bench --layer` and `--contests`, and the page that the latter writes."""

import dataclasses
import json

import pytest
import torch
from analysis_tool import call_tool
from PIL import Image

from kronattn_mm.benchmark import Bar, Contest, Contestant, Entry, judge, run_contest
from kronattn_mm.benchmark.contest import Cleared, Figures
from kronattn_mm.benchmark.contests import CONTESTS
from kronattn_mm.benchmark.measure import Time
from kronattn_mm.benchmark.page import (
    BEGIN,
    END,
    PageError,
    check_page,
    folder_of,
    measure_in_processes,
    write_page,
)
from kronattn_mm.benchmark.results import Result, results_data
from kronattn_mm.benchmark.text import machine
from kronattn_mm.cli import bench, bench_runs


def _enter(device):
    x = torch.randn(64, 64, device=device)
    return Entry([Contestant('one', lambda: x @ x), Contestant('two', lambda: x @ x @ x)])


SMALL = (
    Contest('small-a', 'a small contest', _enter, (Bar('one over two', 'two', 'one', 0.1, 0.2),)),
    Contest('small-b', 'another', _enter, repetitions=3),
)


@pytest.fixture
def contests(monkeypatch):
    monkeypatch.setattr(bench, 'CONTESTS', SMALL)
    monkeypatch.setattr(bench_runs, 'CONTESTS', SMALL)


def test_a_layer_over_sizes(capfd, tmp_path):
    file, chart = tmp_path / 'sb.json', tmp_path / 'sb.png'
    code, out, err = call_tool(
        bench,
        capfd,
        *'--layer ShiftBalanceConv2d --set kernel_size=1 --channels 12 --batch 3'.split(),
        *'--maps 4x5 3x3 --against straightforward static floor --training'.split(),
        *'--dtype float64 --repetitions 2 --threads 1'.split(),
        *('--json', str(file), '--png', str(chart)),
    )
    assert code == 0, err
    for words in ('forward + backward', 'batch 3, 12 channels', '4x5', '3x3', 'static', 'float64'):
        assert words in out
    data = json.loads(file.read_text())
    assert [item['title'] for item in data['contests']] == ['4x5', '3x3']
    assert data['contests'][0]['figures']['static']['time']['wall'] > 0
    assert 'kernel_size=(1, 1)' in data['layer']
    assert data['settings']['repetitions'] == 2 and data['settings']['threads'] == 1
    with Image.open(chart) as image:
        assert image.width > 800


@pytest.mark.slow
def test_a_layer_under_compile(capfd):
    code, out, _ = call_tool(
        bench,
        capfd,
        *'--layer EfficientAttention1d --channels 64 --maps 40 --repetitions 1'.split(),
    )
    assert code == 0
    for name in ('kronattn_mm', 'straightforward', 'compiled', 'NonLocal', 'SDPA', 'floor'):
        assert f' {name} ' in out


def test_contests_by_the_beginning_of_their_names(capfd, contests, tmp_path):
    file = tmp_path / 'bars.json'
    code, out, _ = call_tool(
        bench, capfd, *f'--contests small-a --repetitions 2 --json {file}'.split()
    )
    assert code == 0 and 'another' not in out
    assert 'one over two' in out and '>= 0.1x' in out and 'aim' in out
    (contest,) = json.loads(file.read_text())['contests']
    assert contest['bars'][0]['verdict'] == 'aim'


@pytest.mark.parametrize(
    'argv, message',
    [
        (['--layer', 'EfficientAttn2d'], 'layer must be one of'),
        (['--layer', 'EfficientAttention2d', '--maps', '3x4x5'], 'takes maps of 2 dimension(s)'),
        (['--layer', 'EfficientAttention2d', '--maps', '3xa'], "invalid map size value: '3xa'"),
        (['--layer', 'EfficientAttention2d', '--maps', '999999x999999'], 'GB for input and output'),
        (['--layer', 'EfficientAttention2d', '--json', '.'], '. is a folder; name the file'),
        (['--layer', 'EfficientAttention2d', '--set', 'heads'], 'expected KEY=VALUE'),
        (['--layer', 'EfficientAttention2d', '--set', 'num_heads=7'], 'num_heads'),
        (['--layer', 'CGNL2d', '--against', 'static'], 'takes the place of no convolution'),
        (['--layer', 'CGNL2d', '--shape', '4', '4'], '--shape goes with --model'),
        (['--contests', 'smal-b'], "did you mean 'small-b'?"),
        (['--contests', '--dtype', 'float16'], '--dtype goes with --layer'),
        (['--contests', 'small-a', '--page', 'p.md'], '--page takes all contests'),
        (['--contests', '--page', 'nowhere.md'], 'nowhere.md cannot be read'),
        (['--model', 'a.py', '--page', 'p.md'], '--page goes with --contests'),
        (['--contests', '--processes', '2'], '--processes goes with --page'),
        (['--contests', '--resume'], '--resume goes with --page'),
    ],
)
def test_mistakes_end_in_one_line(capfd, contests, argv, message):
    code, out, err = call_tool(bench, capfd, *argv)
    assert code == 2
    assert message in err and err.count('\n') == 1 and not out


def measured():
    results = []
    for contest in SMALL:
        figures = run_contest(contest.enter('cpu'), 1)
        results.append(Result(contest.title, figures, judge(contest, figures)))
    settings = dict(machine('cpu'), repetitions=15, memory='usual')
    return json.loads(json.dumps(dict(settings=settings, contests=results_data(results))))


def test_the_page_keeps_its_own_words(tmp_path):
    page = tmp_path / 'performance.md'
    page.write_text(f'# Mine\n\nbefore\n\n{BEGIN}\nold figures\n{END}\n\nafter\n')
    default = measured()
    runs = dict(usual=[default, measured(), measured()], kept=[measured()], returned=[measured()])
    folder_of(page).mkdir()
    written = write_page(page, runs)
    assert not folder_of(page).exists()
    assert [path.name for path in written] == [
        'performance.md',
        'performance.png',
        'performance.json',
    ]
    text = page.read_text()
    assert text.startswith('# Mine\n\nbefore\n') and text.endswith('\n\nafter\n')
    assert 'old figures' not in text and 'Of 1 bars 1 are cleared' in text
    assert '| one over two |' in text and text.count('### a small contest') == 1
    lines = [line for line in text.splitlines() if line.startswith('| ')]
    assert {line.count('|') for line in lines} <= {10, 11}, (
        'rows have as many cells as their header'
    )
    assert json.loads(written[2].read_text()) == runs
    with Image.open(tmp_path / 'images' / 'performance.png') as image:
        assert image.width > 800
    write_page(page, dict(usual=[default], kept=[], returned=[]))
    assert page.read_text().count(BEGIN) == 1
    assert '1 process(es) for each contest, whose number,' in page.read_text()
    some = {**default, 'contests': default['contests'][:1]}
    write_page(page, dict(usual=[default, default, some, some, some], kept=[], returned=[]))
    assert (
        '2 process(es) for each contest (5 for the 1 of 2 contests whose ratios lay on both sides '
        'of a bar in the first 2 or did not all count, until 6 counted), whose number,'
    ) in page.read_text()


def test_the_page_by_its_command(tmp_path, capfd, monkeypatch):
    page, asked = tmp_path / 'performance.md', []
    page.write_text(f'{BEGIN}\n{END}\n')
    run = measured()

    def measure(*arguments):
        asked.append(arguments)
        return dict(usual=[run, run], kept=[run], returned=[run])

    monkeypatch.setattr('kronattn_mm.cli.bench_runs.measure_in_processes', measure)
    argv = ['--contests', '--threads', '1', '--processes', '2', '--page', str(page)]
    code, _, err = call_tool(bench, capfd, *argv)
    assert code == 0 and f'wrote {page}' in err
    ((_, options, processes, folder),) = asked
    assert options == ['--repetitions', '15', '--threads', '1'] and processes == 2
    assert '2 process(es)' in page.read_text()
    # A run that ended early is either taken up or deleted.
    code, _, err = call_tool(bench, capfd, '--contests', '--resume', '--page', str(page))
    assert code == 2 and f'there is nothing to resume: {folder} does not exist' in err
    folder.mkdir()
    code, _, err = call_tool(bench, capfd, '--contests', '--page', str(page))
    assert code == 2 and f'{folder} has what a run that ended early had measured' in err
    code, _, err = call_tool(bench, capfd, *argv, '--resume')
    assert code == 0 and not folder.exists() and len(asked) == 2


def test_each_contest_in_a_process_of_its_own(tmp_path):
    keys = ('ea-small-forward-7x7', 'ea-small-forward-10x10')
    first, second = (contest for contest in CONTESTS if contest.key in keys)
    contests = [first, dataclasses.replace(second, all_allocators=False)]
    options = ['--repetitions', '1', '--threads', '1']
    measured = measure_in_processes(contests, options, 1, tmp_path)
    titles = {
        memory: [[contest['title'] for contest in run['contests']] for run in runs]
        for memory, runs in measured.items()
    }
    both, one = [first.title, second.title], [first.title]
    assert titles == dict(usual=[both], kept=[one], returned=[one])
    assert [runs[0]['settings']['memory'] for runs in measured.values()] == list(measured)
    files = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert set(files) == {*(f'0-{key}.json' for key in keys), 'kept.json', 'returned.json'}
    # What is there is not measured again, and does not go with what was measured differently.
    assert measure_in_processes(contests, options, 1, tmp_path) == measured
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == files
    (tmp_path / f'0-{keys[1]}.json').write_text(files[f'0-{keys[1]}.json'].replace('1', '2'))
    with pytest.raises(PageError, match='measured with different settings: '):
        measure_in_processes(contests, options, 1, tmp_path)


def test_a_process_that_fails(tmp_path):
    (contest,) = (contest for contest in CONTESTS if contest.key == 'ea-small-forward-7x7')
    gone, folder = dataclasses.replace(contest, key='ea-gone'), tmp_path / 'measured'
    with pytest.raises(PageError, match='measures ea-gone ended with exit code 2$'):
        measure_in_processes([gone], [], 1, folder)
    assert not folder.exists(), 'nothing was measured that could be taken up'
    options = ['--repetitions', '1', '--threads', '1']
    with pytest.raises(PageError, match=r'what others measured is in .*measured \(--resume\)'):
        measure_in_processes([contest, gone], options, 1, folder)
    assert [file.name for file in folder.iterdir()] == ['0-ea-small-forward-7x7.json']


def test_more_processes_where_the_ratios_lie_on_both_sides_of_a_bar(tmp_path, monkeypatch):
    contests = [
        dataclasses.replace(contest, bars=(Bar('two over one', 'two', 'one', 2, 3),))
        for contest in SMALL
    ]
    ratios = {contests[0].key: [1.5, 2.5], contests[1].key: [2.5, 3.5]}

    def measure(process, keys, memory, name):
        asked.append(name)
        wall = ratios[keys[0]][len(asked) // 2 % 2]
        of_name = {
            name: Figures(Time(wall, wall, wall, (wall, wall)))
            for name, wall in (('one', 1), ('two', wall))
        }
        (contest,) = (contest for contest in contests if contest.key == keys[0])
        result = Result(contest.title, of_name, judge(contest, of_name))
        return json.loads(json.dumps(dict(settings={}, contests=results_data([result]))))

    asked = []
    monkeypatch.setattr('kronattn_mm.benchmark.page._Process.measure', measure)
    first, second = (contest.key for contest in contests)
    measured = measure_in_processes(contests, [], 3, tmp_path)
    assert [len(run['contests']) for run in measured['usual']] == [2, 2, 2, 1, 1, 1, 1, 1, 1]
    assert asked[:6] == [f'{n}-{key}' for n in range(3) for key in (first, second)]
    assert asked[6:] == [*(f'{n}-{first}' for n in range(3, 9)), 'kept', 'returned']


@pytest.mark.parametrize(
    ('keeps', 'expected'),
    [
        ([False] * 3, 3),
        # One of two counts, at last six of twelve, or of so many that there is an end to it.
        ([True, False], 12),
        ([True] * 9 + [False], 18),
        ([True], 18),
    ],
)
def test_more_processes_until_enough_of_them_count(tmp_path, monkeypatch, keeps, expected):
    contest = dataclasses.replace(SMALL[0], bars=(Bar('two over one', 'two', 'one', 2, 3),))

    def measure(process, keys, memory, name):
        if memory == 'usual':
            asked.append(name)
        time = Time(3, 3, 3, (3, 3))
        kept = keeps[(len(asked) - 1) % len(keeps)]
        result = Result(
            contest.title, {'two': Figures(time)}, [Cleared(contest.bars[0], 3, 'aim', kept=kept)]
        )
        return json.loads(json.dumps(dict(settings={}, contests=results_data([result]))))

    asked = []
    monkeypatch.setattr('kronattn_mm.benchmark.page._Process.measure', measure)
    processes = 3 if expected == 3 else 2
    measured = measure_in_processes([contest], [], processes, tmp_path)
    assert len(measured['usual']) == expected
    assert asked == [f'{n}-{contest.key}' for n in range(expected)]


@pytest.mark.parametrize('text', ['', BEGIN, f'{END}\n{BEGIN}', f'{BEGIN}{BEGIN}{END}'])
def test_a_page_without_its_marks(tmp_path, text):
    page = tmp_path / 'page.md'
    page.write_text(text)
    with pytest.raises(PageError, match='once, in that order'):
        check_page(page)
    assert page.read_text() == text


def test_the_documents_page_has_its_marks():
    from analysis_tool import ROOT

    check_page(ROOT / 'docs' / 'performance.md')
