"""The one command: lists what is there, passes on, and says what is wrong in one line."""

import subprocess
import sys

import pytest

from kronattn_mm.cli import command


def test_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(['--help']) == 0
    out = capsys.readouterr().out
    listed = [line.split()[0] for line in out.splitlines() if line.startswith('  ')]
    assert listed[:3] == ['doctor', 'points', 'layers'] and 'cost' in listed
    assert command.main([]) == 2
    assert command.main(['--version']) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith('kronattn_mm ')


def test_a_command_that_is_not_there_is_not_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(command.COMMANDS, 'export', ('kronattn_mm.cli.nowhere', 'to come'))
    assert command.main(['--help']) == 0
    assert 'to come' not in capsys.readouterr().out
    assert command.main(['export']) == 2


def test_the_nearest_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(['pointz']) == 2
    assert "did you mean 'points'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    'name', [name for name, (target, _) in command.COMMANDS.items() if command._exists(target)]
)
def test_every_command_has_help_with_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip('mmdet')
    before = list(sys.argv)
    with pytest.raises(SystemExit) as stop:
        command.main([name, '--help'])
    out = capsys.readouterr().out
    assert stop.value.code == 0 and f'usage: kronattn {name} ' in out
    assert 'example' in out.lower()
    assert sys.argv == before


def test_a_mistake_ends_with_one_line_that_names_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stop:
        command.main(['points'])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith('kronattn points: error: ')


@pytest.mark.parametrize('name', ['nonsense', 'triton'])
def test_a_backend_that_cannot_run_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    if name == 'triton':
        availability = pytest.importorskip('kronattn_mm.ops.triton.availability')
        if availability.missing() is None:
            pytest.skip('Triton runs here')
    monkeypatch.setenv('KRONATTN_BACKEND', name)
    assert command.main(['layers']) == 2
    out, err = capsys.readouterr()
    assert err.startswith('kronattn layers: error: KRONATTN_BACKEND') and err.count('\n') == 1
    assert repr(name) in err and not out


def test_it_starts_without_torch() -> None:
    program = (
        'import sys; from kronattn_mm.cli import command; command.main(["--help"]); '
        'assert not {"torch", "mmengine"} & set(sys.modules)'
    )
    subprocess.run([sys.executable, '-c', program], check=True, capture_output=True)
