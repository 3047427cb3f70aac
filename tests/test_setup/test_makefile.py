"""What `make` runs, and what it says where there is no fitting Python."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which('make') is None, reason='make is not installed')


@pytest.fixture
def tree(tmp_path):
    """The Makefile and the set-up scripts alone, so that nothing can be installed by mistake."""
    shutil.copy(ROOT / 'Makefile', tmp_path)
    shutil.copytree(ROOT / 'tools' / 'setup', tmp_path / 'tools' / 'setup')
    return tmp_path


def environment(**variables):
    """The variables without those by which a `make test` above would reach into another make."""
    makes_own = (
        'MAKEFLAGS',
        'MFLAGS',
        'MAKELEVEL',
        'PYTHON',
        'DATA',
        'OUT',
        'PYTEST_ARGS',
        'MPLCONFIGDIR',
        'TORCH_HOME',
        'TORCHINDUCTOR_CACHE_DIR',
        'TRITON_CACHE_DIR',
    )
    inherited = {name: value for name, value in os.environ.items() if name not in makes_own}
    return {**inherited, **variables}


def make(folder, *arguments, **variables):
    return subprocess.run(
        [shutil.which('make'), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment(**variables),
    )


def test_without_a_target_it_lists_them(tree):
    answer = make(tree)
    assert answer.returncode == 0
    for target in ('quickstart', 'test', 'test-slow', 'setup', 'clean', 'DATA=', 'OUT='):
        assert target in answer.stdout


def test_quickstart_passes_data_and_out(tree):
    shown = make(tree, '-n', 'quickstart', 'DATA=my data', 'OUT=there').stdout
    assert '--data "my data" --out "there"' in shown
    assert '--data' not in make(tree, '-n', 'quickstart').stdout


def test_tests_are_split_by_the_marker(tree):
    assert "-m 'not slow' -x" in make(tree, '-n', 'test', 'PYTEST_ARGS=-x').stdout
    assert '-m slow' in make(tree, '-n', 'test-slow').stdout


def test_lint_checks_rules_and_format(tree):
    shown = make(tree, '-n', 'lint').stdout
    assert '-m ruff check .' in shown and '-m ruff format --check --quiet .' in shown


def test_caches_stay_inside_the_checkout(tree):
    (tree / 'Makefile').write_text((tree / 'Makefile').read_text() + '\nshow:\n\t@env\n')
    variables = make(tree, 'show').stdout
    for name in ('MPLCONFIGDIR', 'TORCH_HOME', 'TORCHINDUCTOR_CACHE_DIR'):
        assert f'{name}={tree}/.venv/cache/' in variables
    assert 'MPLCONFIGDIR=/mine' in make(tree, 'show', MPLCONFIGDIR='/mine').stdout
    originals = (tree / 'Makefile').read_text() + '\nshow: VENV = .venv-originals\n'
    (tree / 'Makefile').write_text(originals)
    assert f'MPLCONFIGDIR={tree}/.venv-originals/cache/' in make(tree, 'show').stdout


def test_the_originals_have_an_environment_of_their_own(tree):
    shown = make(tree, '-n', 'test-originals', 'PYTHON=/some/python').stdout
    assert '"/some/python" tools/setup/prepare.py --chosen --stack originals' in shown
    assert '.venv-originals/bin/python -m pytest -m' in shown and '.venv/' not in shown
    assert '--stack' not in make(tree, '-n', 'test', 'PYTHON=/some/python').stdout


def test_cleaning_removes_both_environments(tree):
    for name in ('.venv', '.venv-originals'):
        (tree / name).mkdir()
    assert make(tree, 'clean-env').returncode == 0
    assert not list(tree.glob('.venv*'))


def test_no_python_at_all(tree):
    (tree / 'bin').mkdir()
    (tree / 'bin' / 'sh').symlink_to('/bin/sh')
    answer = make(tree, 'setup', PATH=str(tree / 'bin'))
    assert answer.returncode != 0
    assert 'No Python 3.10, 3.11 or 3.12 was found' in answer.stderr


def test_an_old_python_on_the_path_is_passed_over(tree):
    folder = tree / 'bin'
    folder.mkdir()
    (folder / 'python3').write_text('#!/bin/sh\nexit 1\n')
    (folder / 'python3').chmod(0o755)
    name = f'python3.{sys.version_info[1]}'
    (folder / name).symlink_to(sys.executable)
    shown = make(tree, '-n', 'setup', PATH=f'{folder}:/usr/bin:/bin').stdout
    assert f'"{name}" tools/setup/prepare.py' in shown and '--chosen' not in shown


def test_a_named_python_is_taken_as_chosen(tree):
    shown = make(tree, '-n', 'setup', 'PYTHON=/some/python').stdout
    assert '"/some/python" tools/setup/prepare.py --chosen' in shown


def test_a_named_python_that_does_not_exist(tree):
    answer = make(tree, 'setup', 'PYTHON=python3.77')
    assert answer.returncode != 0
    assert 'PYTHON=python3.77: there is no such program' in answer.stderr


def test_nothing_but_the_continuous_check_looks_beside_the_checkout():
    assert 'shared' not in (ROOT / 'Makefile').read_text()
    script = (ROOT / '.ci' / 'run').read_text()
    assert 'make test' in script and '../shared/wheels' in script


def test_the_continuous_check_appends_to_find_links(tree):
    (tree / 'shared' / 'wheels').mkdir(parents=True)
    checkout = tree / 'checkout'
    (checkout / '.ci').mkdir(parents=True)
    shutil.copy(ROOT / '.ci' / 'run', checkout / '.ci')
    (checkout / 'Makefile').write_text(
        'lint:\n\t@echo form\ntest:\n\t@echo "links: $(PIP_FIND_LINKS)"\n'
    )
    for before, after in (('/mine', f'/mine {tree}/shared/wheels'), ('', f'{tree}/shared/wheels')):
        answer = subprocess.run(
            [str(checkout / '.ci' / 'run')],
            cwd='/',
            capture_output=True,
            text=True,
            env=environment(PIP_FIND_LINKS=before),
        )
        assert answer.stdout.splitlines() == ['form', f'links: {after}']
