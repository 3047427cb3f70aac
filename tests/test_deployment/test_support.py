"""The support table: it measures what it says, notices what is wrong, and the page has all."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip('mmcv')

from kronattn_mm import layers
from kronattn_mm.cli.support import main
from kronattn_mm.deployment.layer_cases import LayerCase, layer_cases
from kronattn_mm.deployment.straightforward import straightforward
from kronattn_mm.deployment.support import STATES, Cell, Row, failures, support_row
from kronattn_mm.deployment.support_page import (
    Page,
    cells_of,
    differences,
    missing_layers,
    name_of,
    page_text,
    read_page,
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs' / 'support.md'


def test_the_page_has_every_layer():
    page = read_page(PAGE)
    missing = missing_layers(page, layers.__all__)
    assert not missing, (
        f'docs/support.md lacks {", ".join(missing)}: '
        f'`kronattn support {" ".join(missing)} --page docs/support.md` measures them'
    )
    assert all(len(cells) == len(STATES) for cells in page.rows.values())


@pytest.mark.parametrize('case', layer_cases(), ids=lambda case: case.name)
def test_every_layer_is_what_the_equations_say(case):
    assert not failures([support_row(case, ['eager', 'fused', 'bf16', 'fp16'])])


def test_the_straightforward_forms_call_nothing_of_the_layers(monkeypatch):
    """Else they would agree with whatever the layers do."""
    case = LayerCase('EfficientAttention2d', 'insert')
    layer = case.build()
    x = case.inputs()[0]
    with torch.no_grad():
        wanted = layer(x)
        monkeypatch.setattr(type(layer), 'forward', None)
        monkeypatch.setattr(type(layer), 'attend', None)
        torch.testing.assert_close(straightforward(layer)(x), wanted, rtol=1e-4, atol=1e-5)


def test_a_wrong_layer_fails(monkeypatch, capsys):
    from kronattn_mm.layers import SqueezeExcite2d

    right = SqueezeExcite2d.forward
    monkeypatch.setattr(SqueezeExcite2d, 'forward', lambda self, x: right(self, x) * 1.001)
    assert main(['SqueezeExcite2d', '--states', 'eager', 'fp16']) == 1
    captured = capsys.readouterr()
    assert 'SqueezeExcite2d, eager: 1.0e-03 is above 1.0e-05' in captured.err
    assert 'fp16:' not in captured.err, 'which rounds more than that'


def test_a_layer_that_raises_or_does_nothing_fails(monkeypatch):
    from kronattn_mm.layers import SqueezeExcite2d

    def no_half(self, x):
        if x.dtype != torch.float32:
            raise RuntimeError('float32 | only')
        return x

    case = LayerCase('SqueezeExcite2d', 'insert')
    monkeypatch.setattr(SqueezeExcite2d, 'forward', no_half)
    row = support_row(case, ['eager', 'fp16'])
    assert row.cells[0].difference > 1e-2
    assert row.cells[1] == Cell('fp16', None, 'RuntimeError: float32 | only')
    assert cells_of(row)[1] == r'**fails**: RuntimeError: float32 \| only'
    idle = LayerCase('EfficientAttention2d', 'insert')
    monkeypatch.setattr(
        'kronattn_mm.deployment.layer_cases.make_active',
        lambda layer: [torch.nn.init.zeros_(part) for part in layer.reprojection.parameters()],
    )
    row = support_row(idle, ['eager'])
    assert 'returns what it is given' in row.cells[0].problem
    assert failures([row])


def test_a_layer_with_an_argument_of_unknown_value_is_named(monkeypatch):
    from kronattn_mm.layers import SqueezeExcite2d

    def init(self, in_channels, nodes):
        raise AssertionError('must not be called')

    monkeypatch.setattr(SqueezeExcite2d, '__init__', init)
    (row,) = (support_row(case, ['eager']) for case in layer_cases(['SqueezeExcite2d']))
    assert 'SqueezeExcite2d needs nodes, for which no value is known' in row.cells[0].problem


def row(name='A2d', **problems):
    return Row(
        name,
        name == 'A2d',
        tuple(
            Cell(state, None, problems[state]) if state in problems else Cell(state, 1e-7)
            for state in STATES
        ),
    )


def page(*rows):
    return Page('Measured with x.', {name_of(each): cells_of(each) for each in rows})


def test_a_page_is_read_as_it_was_written(tmp_path):
    written = page(row(), row('B1d(mode=3)', onnx='Type: a | b'))
    path = tmp_path / 'page.md'
    path.write_text(page_text(written))
    assert read_page(path) == written
    assert list(written.rows) == ['`A2d`', '`B1d(mode=3)` (†)']
    assert missing_layers(written, ['A2d', 'B1d', 'C2d']) == ['C2d']
    path.write_text('# another page\n')
    with pytest.raises(ValueError, match='is no page of the support table'):
        read_page(path)


def test_what_a_page_says_otherwise():
    assert not differences(page(row(), row('B')), page(row()))
    assert differences(page(row()), page(row('B'))) == ['`B` is not in the page']
    assert differences(page(row()), page(row(onnx='no'))) == [
        '`A2d`, ONNX: it does not work, and the page says otherwise'
    ]
    assert 'it works, and' in differences(page(row(onnx='no')), page(row()))[0]


def test_rows_are_exchanged_in_a_page(tmp_path, monkeypatch, capsys):
    from kronattn_mm.cli import support

    monkeypatch.setattr(support, 'support_row', lambda case, *rest: row(case.name))
    path = tmp_path / 'page.md'
    assert main(['SqueezeExcite2d', '--page', str(path)]) == 0
    assert main(['RegularAttention2d', '--page', str(path)]) == 0
    assert list(read_page(path).rows) == [
        '`RegularAttention2d` (†)',
        '`RegularAttention2d(pooling=True)` (†)',
        '`SqueezeExcite2d` (†)',
    ]
    path.write_text(path.read_text().replace('Measured with ', 'Measured with torch 1.0, '))
    with pytest.raises(SystemExit) as stop:
        main(['RegularAttention2d', '--page', str(path)])
    assert stop.value.code == 2
    assert 'measured in another setting' in capsys.readouterr().err
    path.write_text('# Mine')
    for place, words in ((path, 'is no page of the support table'), (tmp_path, 'Is a directory')):
        with pytest.raises(SystemExit):
            main(['--page', str(place)])
        assert words in capsys.readouterr().err
    assert path.read_text() == '# Mine'
    with pytest.raises(SystemExit):
        main(['--states', 'eager', '--page', str(path)])
    assert 'need all forms' in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(['SqueezeExite2d'])
    assert "'kronattn_mm.SqueezeExcite2d'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_page_says_what_is_measured():
    """The command that writes the page, which fails where a form does."""
    pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    script = ROOT / 'tools' / 'docs' / 'support_table.py'
    answer = subprocess.run(
        [sys.executable, str(script), '--check', str(PAGE)], capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
