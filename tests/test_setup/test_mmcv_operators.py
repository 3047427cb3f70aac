"""A wheel of mmcv is recognised, or the operators are compiled with progress."""

import os
import sys
import tarfile
import time
from pathlib import Path

import mmcv_operators
import pytest

WHEEL = 'onedl_mmcv-2.3.6-cp311-cp311-linux_x86_64.whl'


@pytest.mark.parametrize(
    ('filename', 'fits'),
    [
        (WHEEL, True),
        ('onedl_mmcv-2.3.6-1-cp311-cp311-linux_x86_64.whl', True),
        ('onedl_mmcv-2.3.6-cp311-cp311-manylinux_2_28_x86_64.whl', True),
        ('onedl_mmcv-2.3.6-cp310-cp310-linux_x86_64.whl', False),
        ('onedl_mmcv-2.3.5-cp311-cp311-linux_x86_64.whl', False),
        ('onedl_mmcv-2.3.6-cp311-cp311-linux_aarch64.whl', False),
        ('mmcv-2.1.0-cp311-cp311-linux_x86_64.whl', False),
        ('onedl_mmcv-2.3.6.tar.gz', False),
    ],
)
def test_wheel_names(filename, fits):
    found = mmcv_operators.wheel_fits(filename, 'onedl-mmcv', '2.3.6', (3, 11), 'x86_64')
    assert found is fits


def test_the_two_mmcv_are_told_apart():
    original = 'mmcv-2.1.0-cp311-cp311-linux_x86_64.whl'
    assert mmcv_operators.wheel_fits(original, 'mmcv', '2.1.0', (3, 11), 'x86_64')
    assert not mmcv_operators.wheel_fits(original, 'onedl-mmcv', '2.1.0', (3, 11), 'x86_64')
    assert not mmcv_operators.wheel_fits(WHEEL, 'mmcv', '2.3.6', (3, 11), 'x86_64')


def test_find_wheel_looks_through_folders(tmp_path):
    (tmp_path / 'b').mkdir()
    (tmp_path / 'b' / WHEEL).touch()
    folders = ['https://example.org/wheels', str(tmp_path / 'a'), f'file://{tmp_path}/b']
    found = mmcv_operators.find_wheel(folders, 'onedl-mmcv', '2.3.6', (3, 11), 'x86_64')
    assert found == tmp_path / 'b' / WHEEL
    args = (folders, 'onedl-mmcv', '2.3.6', (3, 12), 'x86_64')
    assert mmcv_operators.find_wheel(*args) is None


def test_all_cores_as_far_as_memory_goes(machine):
    machine.core_count = 8
    assert mmcv_operators.jobs(machine) == 8
    machine.memory = 4 * 2**30
    assert mmcv_operators.jobs(machine) == 2
    machine.memory = 2**29
    assert mmcv_operators.jobs(machine) == 1


def test_announcement_scales_with_the_cores():
    assert 'about 8 minutes' in mmcv_operators.announcement(2, cuda=False)
    assert 'about 1 minute' in mmcv_operators.announcement(64, cuda=False)
    assert 'CUDA' not in mmcv_operators.announcement(2, cuda=False)
    assert 'CUDA' in mmcv_operators.announcement(2, cuda=True)


@pytest.mark.parametrize(
    ('nvcc', 'torch_cuda', 'fits'),
    [
        ('Cuda compilation tools, release 13.0, V13.0.88', '13.0', True),
        ('Cuda compilation tools, release 13.2, V13.2.1', '13.0', True),
        ('Cuda compilation tools, release 12.8, V12.8.1', '13.0', False),
        ('Cuda compilation tools, release 13.0, V13.0.88', None, False),
        ('not a compiler', '13.0', False),
    ],
)
def test_cuda_versions(nvcc, torch_cuda, fits):
    assert mmcv_operators.cuda_fits(nvcc, torch_cuda) is fits


def test_environment_for_the_cpu_hides_the_gpu():
    result = mmcv_operators.compile_environment({'CFLAGS': '-march=native'}, 3, nvcc=None)
    assert result['MAX_JOBS'] == '3'
    assert result['CFLAGS'] == '-O2 -g0 -march=native'
    assert result['FORCE_CUDA'] == '0' and result['CUDA_VISIBLE_DEVICES'] == ''


def test_environment_for_cuda_names_the_toolkit():
    result = mmcv_operators.compile_environment({'MAX_JOBS': '1'}, 3, '/opt/cuda/bin/nvcc')
    assert result['MAX_JOBS'] == '1'
    assert result['FORCE_CUDA'] == '1' and result['CUDA_HOME'] == '/opt/cuda'
    assert 'CUDA_VISIBLE_DEVICES' not in result


def test_progress_counts_what_ninja_plans(tmp_path):
    assert mmcv_operators.count_objects(tmp_path) == (0, 0)
    assert 'preparing, 0:05' in mmcv_operators.progress_line(0, 0, 5)
    build = tmp_path / 'build' / 'temp.linux-x86_64-cpython-311'
    (build / 'csrc').mkdir(parents=True)
    (build / 'build.ninja').write_text(
        'rule compile\n\nbuild /x/csrc/a.o: compile /x/a.cpp\nbuild /x/csrc/b.o: compile /x/b.cpp\n'
    )
    (build / 'csrc' / 'a.o').touch()
    assert mmcv_operators.count_objects(tmp_path) == (1, 2)
    assert '1 of 2 files compiled, 1:15 min' in mmcv_operators.progress_line(1, 2, 75)


def test_unpack_leaves_a_half_compiled_source_alone(tmp_path):
    source = tmp_path / 'in' / 'onedl_mmcv-2.3.6'
    source.mkdir(parents=True)
    (source / 'setup.py').write_text('new')
    archive = tmp_path / 'onedl_mmcv-2.3.6.tar.gz'
    with tarfile.open(archive, 'w:gz') as tar:
        tar.add(source, source.name)
    top = mmcv_operators.unpack(archive, tmp_path / 'out')
    assert (top / 'setup.py').read_text() == 'new'
    (top / 'setup.py').write_text('in use')
    assert mmcv_operators.unpack(archive, tmp_path / 'out') == top
    assert (top / 'setup.py').read_text() == 'in use'


@pytest.fixture
def fake_pip(tmp_path):
    """A command that takes the place of pip; its program decides what "compiling" does."""

    def make(program):
        path = tmp_path / 'pip.py'
        path.write_text(program)
        return [sys.executable, str(path)]

    return make


def test_compilation_shows_progress(tmp_path, fake_pip, monkeypatch, capsys):
    monkeypatch.setattr(mmcv_operators, 'LOG_INTERVAL', 0.05)
    pip = fake_pip('import sys, time; print(sys.argv[1:]); time.sleep(0.5)')
    log = tmp_path / 'mmcv.log'
    mmcv_operators.compile_wheel(pip, tmp_path, tmp_path / 'wheels', dict(os.environ), log)
    shown = capsys.readouterr().out.splitlines()
    assert len([line for line in shown if 'preparing' in line]) >= 2
    assert 'compiled in' in shown[-1]
    assert '--no-build-isolation' in log.read_text()


def test_failed_compilation_shows_the_end_of_the_log(tmp_path, fake_pip):
    pip = fake_pip('print("first"); print("\\n" * 50); print("error: no such header"); exit(1)')
    log = tmp_path / 'mmcv.log'
    with pytest.raises(RuntimeError, match='no such header') as info:
        mmcv_operators.compile_wheel(pip, tmp_path, tmp_path, dict(os.environ), log)
    assert 'first' not in str(info.value) and str(log) in str(info.value)


def test_interrupted_compilation_leaves_no_process(tmp_path, fake_pip, monkeypatch):
    alive = tmp_path / 'alive'
    # like pip, it has the work done by a process of its own
    pip = fake_pip(
        f'import subprocess\nchild = subprocess.Popen(["sleep", "60"])\n'
        f'with open({str(alive)!r}, "w") as file: file.write(str(child.pid))\n'
        'child.wait()'
    )

    def interrupt(_):
        while not (alive.exists() and alive.read_text()):
            time.sleep(0.02)
        raise KeyboardInterrupt

    monkeypatch.setattr(mmcv_operators, 'LOG_INTERVAL', 0.05)
    monkeypatch.setattr(mmcv_operators, 'count_objects', interrupt)
    with pytest.raises(KeyboardInterrupt):
        mmcv_operators.compile_wheel(pip, tmp_path, tmp_path, dict(os.environ), tmp_path / 'log')
    for _ in range(100):
        if not is_running(int(alive.read_text())):
            return
        time.sleep(0.05)
    pytest.fail('the compiler still runs')


def is_running(pid):
    try:
        state = Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != 'Z'
