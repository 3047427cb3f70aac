"""`kronattn bench --layer` and `--contests`, and the page that the latter writes."""

import dataclasses
import json

import pytest
import torch
from analysis_tool import call_tool
from PIL import Image

from kronattn_mm.benchmark import Bar, Contest, Contestant, Entry, judge, run_contest
from kronattn_mm.benchmark.contests import CONTESTS
from kronattn_mm.benchmark.page import (
    BEGIN,
    END,
    PageError,
    check_page,
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
    written = write_page(page, runs)
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
    assert {line.count('|') for line in lines} <= {9, 10}, 'rows have as many cells as their header'
    assert json.loads(written[2].read_text()) == runs
    with Image.open(tmp_path / 'images' / 'performance.png') as image:
        assert image.width > 800
    write_page(page, dict(usual=[default], kept=[], returned=[]))
    assert page.read_text().count(BEGIN) == 1


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
    ((_, options, processes),) = asked
    assert options == ['--repetitions', '15', '--threads', '1'] and processes == 2
    assert '2 process(es)' in page.read_text()


def test_each_contest_in_a_process_of_its_own():
    keys = ('ea-small-forward-7x7', 'ea-small-forward-10x10')
    first, second = (contest for contest in CONTESTS if contest.key in keys)
    contests = [first, dataclasses.replace(second, all_allocators=False)]
    measured = measure_in_processes(contests, ['--repetitions', '1', '--threads', '1'], 1)
    titles = {
        memory: [[contest['title'] for contest in run['contests']] for run in runs]
        for memory, runs in measured.items()
    }
    both, one = [first.title, second.title], [first.title]
    assert titles == dict(usual=[both], kept=[one], returned=[one])
    assert [runs[0]['settings']['memory'] for runs in measured.values()] == list(measured)
    with pytest.raises(PageError, match='measures ea-gone ended with exit code 2'):
        measure_in_processes([dataclasses.replace(first, key='ea-gone')], [], 1)


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
