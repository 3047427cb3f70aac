"""The order of set-up, its messages, and that it stays inside .venv."""

import ast
import base64
import hashlib
import platform
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pip
import prepare
import pytest
import steps
from environment import STACKS, Environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in (
        'PIP_FIND_LINKS',
        'PIP_CACHE_DIR',
        'KRONATTN_TORCH_INDEX',
        'KRONATTN_MMCV_SOURCE',
        'FORCE_CUDA',
        'MAX_JOBS',
    ):
        monkeypatch.delenv(name, raising=False)


def put_wheel_into_find_links(folder, monkeypatch):
    folder.mkdir()
    tag = f'cp{sys.version_info[0]}{sys.version_info[1]}'
    (folder / f'onedl_mmcv-2.3.6-{tag}-{tag}-linux_{platform.machine()}.whl').touch()
    monkeypatch.setenv('PIP_FIND_LINKS', f'/nowhere {folder}')


class TestInterpreter:
    @pytest.mark.parametrize('version', [(3, 10, 0), (3, 11, 7), (3, 12, 1)])
    def test_supported(self, version):
        assert prepare.refuse_python(version) is None

    @pytest.mark.parametrize('version', [(2, 7, 18), (3, 9, 19), (3, 13, 0)])
    def test_refused_with_what_to_do(self, version):
        message = prepare.refuse_python(version)
        assert f'this is Python {version[0]}.{version[1]}' in message
        assert '3.10, 3.11 or 3.12' in message and 'PYTHON=' in message

    def test_old_pythons_can_read_the_refusal(self):
        source = (ROOT / 'tools' / 'setup' / 'prepare.py').read_text()
        ast.parse(source, feature_version=(3, 4))
        assert not any(line.startswith('from') for line in source.splitlines())

    def test_an_environment_of_another_version_is_not_mixed(self, checkout, machine, monkeypatch):
        env = Environment(checkout)
        monkeypatch.setattr(env, 'python_version', lambda: '3.8.1')
        with pytest.raises(steps.SetupError, match='has Python 3.8.1.*make clean-env setup PYTHON'):
            steps.prepare(env, machine, chosen=True)


class TestMachine:
    def test_everything_missing_is_said_at_once_and_nothing_installed(
        self, checkout, machine, monkeypatch, capsys
    ):
        monkeypatch.setenv('KRONATTN_MMCV_SOURCE', '1')
        machine.programs = set()
        machine.headers = False
        machine.missing_libraries = {'libGL.so.1'}
        machine.free = 2**30
        env = Environment(checkout)
        with pytest.raises(steps.SetupError) as info:
            steps.prepare(env, machine)
        text = str(info.value)
        for part in (
            'no C++ compiler',
            'Python.h',
            'libGL.so.1',
            '1.0 GB are free',
            'PIP_FIND_LINKS',
            'apt-get install g++ python3.11-dev',
        ):
            assert part in text
        assert not env.python.exists()

    def test_with_a_ready_wheel_no_compiler_is_needed(self, checkout, machine, monkeypatch, capsys):
        put_wheel_into_find_links(checkout / 'wheels', monkeypatch)
        machine.programs = set()
        assert steps.check_machine(Environment(checkout), machine) is False
        assert 'ready wheel onedl_mmcv-2.3.6' in capsys.readouterr().out

    def test_the_originals_want_their_own_wheel(self, checkout, machine, monkeypatch, capsys):
        env = Environment(checkout, STACKS['originals'])
        put_wheel_into_find_links(checkout / 'wheels', monkeypatch)
        asked = []
        monkeypatch.setattr(steps, 'registry_has_wheel', lambda env, version: asked.append(version))
        assert steps.must_compile(env) is True
        assert asked == ['2.1.0']
        tag = f'cp{sys.version_info[0]}{sys.version_info[1]}'
        name = f'mmcv-2.1.0-{tag}-{tag}-linux_{platform.machine()}.whl'
        (checkout / 'wheels' / name).touch()
        assert steps.must_compile(env) is False
        assert f'ready wheel {name}' in capsys.readouterr().out

    def test_the_wheel_is_left_alone_on_request(self, checkout, machine, monkeypatch):
        put_wheel_into_find_links(checkout / 'wheels', monkeypatch)
        monkeypatch.setenv('KRONATTN_MMCV_SOURCE', '1')
        assert steps.must_compile(Environment(checkout)) is True

    def test_gpu_without_nvcc_is_a_note(self, checkout, machine, monkeypatch, capsys):
        monkeypatch.setenv('KRONATTN_MMCV_SOURCE', '1')
        machine.gpu = True
        assert steps.check_machine(Environment(checkout), machine) is True
        assert 'trains on the CPU' in capsys.readouterr().out


def test_cpu_only_operators_keep_runs_off_the_gpu(checkout):
    env = Environment(checkout)
    env.folder.mkdir()
    for gpu, operators, expected in (
        (True, 'cpu', 'CUDA_VISIBLE_DEVICES=\n'),
        (True, 'cuda', ''),
        (False, 'cpu', ''),
    ):
        steps.write_run_environment(env, dict(gpu=gpu, operators=operators))
        assert (env.folder / 'run.env').read_text() == expected


def test_pip_stays_inside_the_checkout(checkout, monkeypatch):
    env = Environment(checkout)
    env.temporary.mkdir(parents=True)
    monkeypatch.setenv('PIP_USER', '1')
    monkeypatch.setenv('PYTHONPATH', '/somewhere')
    variables = steps.pip_environment(env)
    assert variables['TMPDIR'] == str(env.temporary)
    assert variables['PIP_NO_CACHE_DIR'] == '1'
    assert 'PIP_USER' not in variables and 'PYTHONPATH' not in variables
    monkeypatch.setenv('PIP_CACHE_DIR', '/my/cache')
    assert 'PIP_NO_CACHE_DIR' not in steps.pip_environment(env)


def test_the_stack_is_chosen_by_its_name(checkout, monkeypatch):
    folders = []
    monkeypatch.setattr(steps, 'prepare', lambda env, *_, **__: folders.append(env.folder.name))
    monkeypatch.setattr(steps.signal, 'signal', lambda *_: None)
    assert steps.main([]) == steps.main(['--stack', 'originals']) == 0
    assert folders == ['.venv', '.venv-originals']


def test_a_complete_environment_starts_nothing(checkout, machine, monkeypatch, capsys):
    env = Environment(checkout)
    monkeypatch.setattr(env, 'why_incomplete', lambda: None)
    monkeypatch.setattr(steps, 'complete', lambda *_: pytest.fail('set-up ran'))
    steps.prepare(env, machine)
    assert capsys.readouterr().out == ''


def test_a_failed_command_is_an_error_with_its_name(checkout):
    with pytest.raises(steps.SetupError, match=r'The thing failed \(status 3\)'):
        steps.run(Environment(checkout), [sys.executable, '-c', 'exit(3)'], 'The thing failed')


def test_imports_that_fail_are_listed(checkout, machine, monkeypatch):
    monkeypatch.setattr(
        steps, 'import_everything', lambda env: dict(errors={'mmdet': 'ImportError: no such thing'})
    )
    with pytest.raises(steps.SetupError, match='mmdet: ImportError: no such thing'):
        steps.verify(Environment(checkout), machine)


def test_operators_that_do_not_load_are_compiled(checkout, machine, monkeypatch, capsys):
    env = Environment(checkout)
    env.wheels.mkdir(parents=True)
    answers = [
        dict(errors={'mmcv.ops': 'ImportError: undefined symbol'}),
        dict(errors={}, gpu=False, operators='cpu'),
    ]
    calls = []
    monkeypatch.setattr(steps, 'import_everything', lambda env: answers.pop(0))
    monkeypatch.setattr(steps, 'compile_operators', lambda *_: calls.append('compile'))
    monkeypatch.setattr(steps, 'pip', lambda env, failure, *arguments: calls.append(arguments[0]))
    assert steps.verify(env, machine) == dict(gpu=False, operators='cpu')
    assert calls == ['compile', 'install']
    assert 'undefined symbol' in capsys.readouterr().out


def test_operators_that_do_not_load_and_no_compiler(checkout, machine, monkeypatch):
    monkeypatch.setattr(
        steps,
        'import_everything',
        lambda env: dict(errors={'mmcv.ops': 'ImportError: undefined symbol'}),
    )
    machine.programs = set()
    with pytest.raises(steps.SetupError, match='no C.. compiler'):
        steps.verify(Environment(checkout), machine)


def test_opencv_without_windows_where_libGL_is_missing(checkout, machine, monkeypatch):
    machine.missing_libraries = {'libGL.so.1'}
    answers = [
        dict(errors={'cv2': 'ImportError: libGL.so.1', 'mmcv.ops': 'the same'}),
        dict(errors={}, gpu=False, operators='cpu'),
    ]
    installed = []
    monkeypatch.setattr(steps, 'import_everything', lambda env: answers.pop(0))
    monkeypatch.setattr(steps, 'constraint_options', lambda env: [])
    monkeypatch.setattr(steps, 'pip', lambda env, failure, *arguments: installed.append(arguments))
    steps.verify(Environment(checkout), machine)
    assert [arguments[-1] for arguments in installed] == ['opencv-python-headless']


def make_wheel(folder: Path, name: str, version: str) -> None:
    """Writes the smallest wheel that pip takes."""
    info = f'{name}-{version}.dist-info'
    files = {
        f'{name}/__init__.py': f'__version__ = {version!r}\n',
        f'{info}/METADATA': f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n',
        f'{info}/WHEEL': 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
    }
    record = ''
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode()
        record += f'{path},sha256={digest.rstrip("=")},{len(text)}\n'
    with zipfile.ZipFile(folder / f'{name}-{version}-py3-none-any.whl', 'w') as wheel:
        for path, text in {**files, f'{info}/RECORD': record + f'{info}/RECORD,,\n'}.items():
            wheel.writestr(path, text)


def test_torch_from_another_index(checkout, tmp_path, monkeypatch):
    index = tmp_path / 'index'
    for name, version in (('torch', '2.13.0+cpu'), ('torchvision', '0.28.0+cpu')):
        (index / name).mkdir(parents=True)
        make_wheel(index / name, name, version)
        # what pip must not take: the same version from elsewhere, and a later one from the index
        make_wheel(index / name, name, '9.0.0+cpu')
        (index / name / 'index.html').write_text(
            ''.join(
                f'<a href="{path.name.replace("+", "%2B")}">{path.name}</a>'
                for path in sorted((index / name).glob('*.whl'))
            )
        )
    (tmp_path / 'elsewhere').mkdir()
    make_wheel(tmp_path / 'elsewhere', 'torch', '2.13.0+elsewhere')
    monkeypatch.setenv('PIP_FIND_LINKS', str(tmp_path / 'elsewhere'))
    monkeypatch.setenv('KRONATTN_TORCH_INDEX', index.as_uri())
    env = Environment(checkout)
    venv.create(env.folder, with_pip=False, symlinks=True)
    (env.site_packages() / 'pip').symlink_to(Path(pip.__file__).parent)
    env.wheels.mkdir()

    steps.install_torch_from_index(env)

    assert env.installed()['torch'] == '2.13.0+cpu'
    assert env.installed()['torchvision'] == '0.28.0+cpu'
    option, path = steps.constraint_options(env)
    assert option == '--constraint'
    assert Path(path).read_text().splitlines()[1:3] == [
        'torch===2.13.0+cpu',
        'torchvision===0.28.0+cpu',
    ]


def test_an_index_named_too_late_is_said(ready_stamp, monkeypatch, capsys):
    monkeypatch.setenv('KRONATTN_TORCH_INDEX', 'https://example.org/cpu')
    steps.warn_of_index(ready_stamp)
    assert 'heeded only when .venv is made' in capsys.readouterr().out


@pytest.fixture
def ready_stamp(checkout):
    env = Environment(checkout)
    env.folder.mkdir()
    env.stamp.write_text('{"index": ""}')
    return env


def test_two_set_ups_at_once_wait_for_each_other(checkout, capsys):
    env = Environment(checkout)
    env.folder.mkdir()
    program = (
        f'import sys, time; sys.path.insert(0, {str(ROOT / "tools" / "setup")!r})\n'
        f'import steps, environment; env = environment.Environment({str(checkout)!r})\n'
        'with steps.alone(env):\n    print("held", flush=True); time.sleep(0.5)\n'
    )
    other = subprocess.Popen([sys.executable, '-c', program], stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == 'held\n'
    with steps.alone(env):
        pass
    assert other.wait() == 0
    assert 'Another set-up of this checkout is running' in capsys.readouterr().out


def test_what_builds_the_pages_is_installed_on_request_and_once(checkout, monkeypatch):
    (checkout / 'requirements' / 'docs.txt').write_text('# pages\nMyst_Parser\nsphinx\n')
    env = Environment(checkout)
    env.folder.mkdir()
    calls = []
    monkeypatch.setattr(steps, 'pip', lambda env, failure, *words, **_: calls.append(words))
    monkeypatch.setattr(env, 'installed', lambda: {'sphinx': '9.0.4'})
    steps.add_docs(env)
    assert calls[0][0] == 'install' and calls[0][-1].endswith('docs.txt')
    monkeypatch.setattr(env, 'installed', lambda: {'sphinx': '9.0.4', 'myst-parser': '5.2.0'})
    steps.add_docs(env)
    assert len(calls) == 1
