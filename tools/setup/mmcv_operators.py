"""mmcv's compiled operators: a ready wheel where there is one, otherwise compiled here.

mmcv comes from the registry as source. The compiler runs in the environment's folder ``build``, so
an interrupted compilation goes on where it stopped, and the wheel it gives stays in ``wheels``.
"""

import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from checks import GIB, Machine

# Measured: 8 minutes on two idle cores with -O2 -g0 (27 with the default flags).
CORE_MINUTES = 16
# Without debug information the library is 2 MB rather than 84 MB, too.
FLAGS = '-O2 -g0'
# One compiler process on torch's headers takes about this much.
MEMORY_PER_JOB = 1.5 * GIB
TERMINAL_INTERVAL, LOG_INTERVAL = 2.0, 15.0


def wheel_fits(
    filename: str, distribution: str, version: str, python: tuple[int, int], machine: str
) -> bool:
    """Whether a file name is that of an mmcv wheel for this interpreter.

    Args:
        filename: For example 'onedl_mmcv-2.3.6-cp311-cp311-linux_x86_64.whl'.
        distribution: 'onedl-mmcv' or 'mmcv'.
        version: The wanted version.
        python: Major and minor version of the interpreter.
        machine: The architecture, as platform.machine() gives it.
    """
    tag = f'cp{python[0]}{python[1]}'
    pattern = (
        rf'{distribution.replace("-", "_")}-{re.escape(version)}(-\d\w*)?-{tag}-{tag}-'
        rf'(many)?linux\w*_{re.escape(machine)}\.whl'
    )
    return re.fullmatch(pattern, filename) is not None


def find_wheel(
    folders: list[str], distribution: str, version: str, python: tuple[int, int], machine: str
) -> Path | None:
    """A fitting wheel in local folders, such as those that PIP_FIND_LINKS names."""
    for folder in folders:
        path = Path(folder.removeprefix('file://'))
        names = sorted(os.listdir(path)) if path.is_dir() else []
        for name in names:
            if wheel_fits(name, distribution, version, python, machine):
                return path / name
    return None


def jobs(machine: Machine) -> int:
    """Compiler processes at once: all cores, as far as the memory goes."""
    return max(1, min(machine.cores(), int(machine.memory_bytes() / MEMORY_PER_JOB)))


def announcement(count: int, cuda: bool) -> str:
    """What to expect of the compilation, said beforehand."""
    minutes = max(1, round(CORE_MINUTES / count))
    cores = 'core' if count == 1 else 'cores'
    unit = 'minute' if minutes == 1 else 'minutes'
    text = (
        f"Compiling mmcv's operators on {count} {cores}: about {minutes} {unit} where they "
        'are idle. This is done once; if interrupted, it goes on where it stopped.'
    )
    if cuda:
        text += '\nThe CUDA kernels are compiled as well, which takes longer than that.'
    return text


def cuda_fits(nvcc_output: str, torch_cuda: str | None) -> bool:
    """Whether nvcc and torch are of the same major CUDA version, as torch's builder demands.

    Args:
        nvcc_output: What ``nvcc --version`` prints.
        torch_cuda: ``torch.version.cuda``, None for a build without CUDA.
    """
    release = re.search(r'release (\d+)\.', nvcc_output)
    return bool(release and torch_cuda and release[1] == torch_cuda.split('.')[0])


def compile_environment(base: dict[str, str], count: int, nvcc: str | None) -> dict[str, str]:
    """The environment variables for the compilation.

    Args:
        base: The variables to start from.
        count: Compiler processes at once.
        nvcc: The CUDA compiler, or None for the CPU alone.
    """
    result = dict(base)
    result['MAX_JOBS'] = base.get('MAX_JOBS') or str(count)
    for name in ('CFLAGS', 'CXXFLAGS'):
        result[name] = f'{FLAGS} {base.get(name, "")}'.strip()
    if nvcc:
        result['FORCE_CUDA'] = '1'
        result['CUDA_HOME'] = str(Path(nvcc).parents[1])
    else:
        # mmcv asks torch whether there is a GPU and would then want nvcc.
        result['FORCE_CUDA'] = '0'
        result['CUDA_VISIBLE_DEVICES'] = ''
    return result


def count_objects(source: Path) -> tuple[int, int]:
    """Object files that exist and that the build plans (0 while it has no plan yet)."""
    plans = list(source.glob('build/temp*/build.ninja'))
    planned = sum(
        len(re.findall(r'^build \S+\.o:', plan.read_text(), re.MULTILINE)) for plan in plans
    )
    done = sum(1 for _ in source.glob('build/temp*/**/*.o'))
    return done, planned


def progress_line(done: int, planned: int, seconds: float) -> str:
    clock = f'{int(seconds) // 60}:{int(seconds) % 60:02d}'
    if not planned:
        return f"  mmcv's operators: preparing, {clock} min"
    return f"  mmcv's operators: {done} of {planned} files compiled, {clock} min"


def unpack(archive: Path, folder: Path) -> Path:
    """Unpacks a source archive and returns its top folder; an unpacked one is left as it is."""
    top = folder / archive.name.removesuffix('.tar.gz')
    if not (top / 'setup.py').exists():
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, 'data_filter'):
                tar.extractall(folder, filter='data')
            else:
                tar.extractall(folder)
    return top


def compile_wheel(
    pip: list[str], source: Path, wheels: Path, environment: dict[str, str], log: Path
) -> None:
    """Compiles unpacked sources into a wheel, with progress on stdout.

    Args:
        pip: The command that is pip.
        source: Folder of the unpacked sources.
        wheels: Where the wheel goes.
        environment: Environment variables, see :func:`compile_environment`.
        log: Where the compiler's output goes.

    Raises:
        RuntimeError: If the compilation fails; with the end of its output.
    """
    command = [
        *pip,
        'wheel',
        '--verbose',
        '--no-deps',
        '--no-build-isolation',
        '--wheel-dir',
        str(wheels),
        str(source),
    ]
    terminal = sys.stdout.isatty()
    interval = TERMINAL_INTERVAL if terminal else LOG_INTERVAL
    start = time.monotonic()
    with open(log, 'w') as output:
        # A session of its own: pip starts setuptools, that ninja and that the compilers, and an
        # interruption has to end them all.
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=output,
            start_new_session=True,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        try:
            while True:
                try:
                    status = process.wait(timeout=interval)
                    break
                except subprocess.TimeoutExpired:
                    line = progress_line(*count_objects(source), time.monotonic() - start)
                    print(
                        f'\r{line}' if terminal else line, end='' if terminal else '\n', flush=True
                    )
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
    if terminal:
        print()
    if status:
        tail = '\n'.join(log.read_text(errors='replace').splitlines()[-40:])
        raise RuntimeError(
            f"{tail}\n\nmmcv's operators could not be compiled; the compiler's "
            f'output is above and in {log}'
        )
    print(f"  mmcv's operators: compiled in {(time.monotonic() - start) / 60:.1f} min", flush=True)
