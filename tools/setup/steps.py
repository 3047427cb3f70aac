"""The steps of set-up, in order. ``make setup`` runs :func:`main` through prepare.py.

Environment variables:
    PIP_FIND_LINKS: pip's own; a wheel of mmcv in such a folder spares compiling it.
    KRONATTN_TORCH_INDEX: Index with other builds of torch and torchvision, such as the smaller
        ones for the CPU alone.
    KRONATTN_MMCV_SOURCE: Set to 1 to compile mmcv's operators even where there is a wheel.
    MAX_JOBS: Compiler processes at once (default: all cores).
"""

import argparse
import contextlib
import fcntl
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import checks
import mmcv_operators
from environment import STACKS, Environment, constraints_beside, normalise, read_pin

# Measured with CPython 3.11 on Linux x86-64: 7.3 at the peak, 5.8 afterwards.
DISK_GIB = 8
DOWNLOAD_GB = 3.1
# Without the CUDA libraries; reckoned from the sizes of the rest, not measured.
CPU_DISK_GIB = 4


class SetupError(Exception):
    """A message for the user that ends set-up."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='prepare.py',
        description='Make or repair an environment of this checkout: .venv or .venv-originals.',
        epilog='example: python3 tools/setup/prepare.py',
    )
    parser.add_argument(
        '--chosen',
        action='store_true',
        help='the interpreter was named by the user: the environment must be made from it',
    )
    parser.add_argument(
        '--docs', action='store_true', help='also install what the pages are built with'
    )
    parser.add_argument(
        '--stack',
        choices=sorted(STACKS),
        default='forks',
        help='which OpenMMLab: the maintained forks in .venv (the default), or the originals in '
        '.venv-originals',
    )
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended like by Ctrl-C
    try:
        env = Environment(stack=STACKS[args.stack])
        prepare(env, checks.Machine(), chosen=args.chosen)
        if args.docs:
            add_docs(env)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print('\nInterrupted; the next call goes on from here.', file=sys.stderr)
        return 130
    return 0


def prepare(env: Environment, machine: checks.Machine, chosen: bool = False) -> None:
    """Brings the environment into its complete state; quick where it is complete."""
    present = env.python_version()
    if chosen and present and present.split('.')[:2] != platform.python_version().split('.')[:2]:
        raise SetupError(
            f'{env.stack.folder} has Python {present}, and PYTHON names Python '
            f'{platform.python_version()}. To make it anew: make clean-env {env.stack.target} '
            f'PYTHON={sys.executable}'
        )
    if env.why_incomplete() is None:
        warn_of_index(env)
        return
    env.folder.mkdir(exist_ok=True)
    with alone(env):
        if env.why_incomplete() is not None:
            complete(env, machine)


@contextlib.contextmanager
def alone(env: Environment) -> Iterator[None]:
    """Two calls at once, such as ``make test`` beside ``make quickstart``, must not mix."""
    with open(env.folder / 'set-up.lock', 'w') as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say('Another set-up of this checkout is running; waiting for it ...')
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def complete(env: Environment, machine: checks.Machine) -> None:
    """Does all the work of set-up; what is there already is left as it is."""
    start = time.monotonic()
    say(f'Setting up {env.stack.folder}: {env.why_incomplete()}.')
    compiles = check_machine(env, machine)
    # From here on the environment is not complete, whatever an older stamp says.
    env.stamp.unlink(missing_ok=True)
    if env.python_version() is None:
        make_venv(env)
    for folder in (env.wheels, env.build, env.temporary):
        folder.mkdir(exist_ok=True)
    install_torch_from_index(env)
    if compiles:
        compile_operators(env, machine)
    install(env)
    facts = verify(env, machine)
    env.write_stamp(index=torch_index(), **facts)
    write_run_environment(env, facts)
    shutil.rmtree(env.temporary, ignore_errors=True)
    say(f'{env.stack.folder} is complete ({time.monotonic() - start:.0f} s).')


def add_docs(env: Environment) -> None:
    """Installs what ``make docs`` needs besides, which nobody else should have to wait for."""
    lines = (env.root / 'requirements' / 'docs.txt').read_text().splitlines()
    wanted = {normalise(line) for line in lines if line and not line.startswith('#')}
    if wanted <= env.installed().keys():
        return
    say('Installing what the pages are built with (80 MB) ...')
    with alone(env):
        pip(
            env,
            'What the pages are built with could not be installed',
            'install',
            *constraint_options(env),
            *requirement_options(env, ('docs',)),
        )


def check_machine(env: Environment, machine: checks.Machine) -> bool:
    """Reports what the machine lacks, and ends set-up if that is needed.

    Returns:
        Whether mmcv's operators have to be compiled.
    """
    findings = []
    if not env.python.exists():
        findings += checks.check_venv(machine)
    installed = env.installed()
    if 'torch' not in installed:
        needed = CPU_DISK_GIB if torch_index() else DISK_GIB
        findings += checks.check_disk(machine, env.root, needed)
    findings += checks.check_opencv_libraries(machine)
    compiles = must_compile(env)
    if compiles:
        missing = checks.check_compiler(machine)
        findings += missing
        if missing:
            findings.append(
                checks.Finding(
                    f'no ready wheel of {env.stack.mmcv} {mmcv_version(env)} was found; with one '
                    'in a folder that PIP_FIND_LINKS names, nothing has to be compiled',
                    blocks=False,
                )
            )
    findings += checks.check_gpu(machine, compiles)
    if findings:
        text = checks.report(findings)
        if any(finding.blocks for finding in findings):
            raise SetupError(text)
        say(text)
    return compiles


def must_compile(env: Environment) -> bool:
    """Whether there is neither an installed nor a ready mmcv of the wanted version."""
    version = mmcv_version(env)
    if env.installed().get(env.stack.mmcv) == version:
        return False
    if os.environ.get('KRONATTN_MMCV_SOURCE') == '1':
        folders = [str(env.wheels)]
    else:
        folders = [str(env.wheels), *os.environ.get('PIP_FIND_LINKS', '').split()]
    found = find_mmcv_wheel(env, folders)
    if found:
        say(f'Using the ready wheel {found.name}.')
        return False
    if os.environ.get('KRONATTN_MMCV_SOURCE') == '1':
        return True
    return not registry_has_wheel(env, version)


def registry_has_wheel(env: Environment, version: str) -> bool:
    """Asks pip, which also knows configured indexes and remote PIP_FIND_LINKS."""
    python = str(env.python) if env.python_version() else sys.executable
    pip = [python, '-m', 'pip']
    if subprocess.run([*pip, '--version'], capture_output=True).returncode:
        return False  # as on a Debian without python3-venv and python3-pip
    say(f'Looking for a ready wheel of {env.stack.mmcv} {version} ...')
    command = [
        *pip,
        'download',
        '--quiet',
        '--no-deps',
        '--only-binary',
        ':all:',
        '--dest',
        str(env.wheels),
        f'{env.stack.mmcv}==={version}',
    ]
    answer = subprocess.run(command, capture_output=True, env=pip_environment(env))
    return answer.returncode == 0


def make_venv(env: Environment) -> None:
    # An environment whose interpreter does not run is of no use to anybody.
    command = [sys.executable, '-m', 'venv', str(env.folder)]
    if env.python.is_symlink():
        command.insert(3, '--clear')
    run(env, command, 'The environment could not be made')


def install_torch_from_index(env: Environment) -> None:
    """Installs torch and torchvision from KRONATTN_TORCH_INDEX, where it is set."""
    index = torch_index()
    if not index or 'torch' in env.installed():
        warn_of_index(env)
        return
    constraints = env.constraints()
    say(f'Installing torch from {index}')
    environment = pip_environment(env)
    # "==" on purpose: builds there are called 2.13.0+cpu. Their dependencies come with the rest,
    # and no other place may mix in, since torch and torchvision must be of the same kind.
    environment.update(PIP_FIND_LINKS=str(env.wheels), PIP_EXTRA_INDEX_URL=index)
    pins = [f'{name}=={read_pin(constraints, name)}' for name in ('torch', 'torchvision')]
    pip(
        env,
        f'torch could not be installed from KRONATTN_TORCH_INDEX={index}',
        'install',
        '--no-deps',
        '--index-url',
        index,
        *pins,
        environment=environment,
    )


def compile_operators(env: Environment, machine: checks.Machine) -> None:
    """Puts a wheel of mmcv, compiled here, into the environment's folder of wheels."""
    say('Installing torch and the build tools, which compiling mmcv needs ...')
    pip(
        env,
        'torch could not be installed',
        'install',
        *constraint_options(env),
        *requirement_options(env, ('build', 'torch')),
    )
    version = mmcv_version(env)
    archive = env.build / f'{env.stack.mmcv.replace("-", "_")}-{version}.tar.gz'
    if not archive.exists():
        pip(
            env,
            f'The source of {env.stack.mmcv} {version} could not be fetched',
            'download',
            '--no-deps',
            '--no-build-isolation',
            '--no-binary',
            env.stack.mmcv,
            '--dest',
            str(env.build),
            f'{env.stack.mmcv}==={version}',
        )
    source = mmcv_operators.unpack(archive, env.build)
    nvcc = usable_nvcc(env, machine)
    count = int(os.environ.get('MAX_JOBS') or mmcv_operators.jobs(machine))
    say(mmcv_operators.announcement(count, cuda=nvcc is not None))
    environment = mmcv_operators.compile_environment(pip_environment(env), count, nvcc)
    # ninja, which the build calls by name, lies in the environment.
    environment['PATH'] = f'{env.python.parent}{os.pathsep}{environment["PATH"]}'
    try:
        mmcv_operators.compile_wheel(
            [str(env.python), '-m', 'pip'], source, env.wheels, environment, env.build / 'mmcv.log'
        )
    except RuntimeError as error:
        raise SetupError(str(error)) from None
    shutil.rmtree(source)


def usable_nvcc(env: Environment, machine: checks.Machine) -> str | None:
    """The CUDA compiler, where there is a GPU too and both fit torch."""
    nvcc = checks.find_nvcc(machine)
    wanted = machine.has_gpu() or os.environ.get('FORCE_CUDA') == '1'
    if not nvcc or not wanted:
        return None
    answer = subprocess.run([nvcc, '--version'], capture_output=True, text=True)
    torch_cuda = subprocess.run(
        [str(env.python), '-c', 'import torch; print(torch.version.cuda)'],
        capture_output=True,
        text=True,
    ).stdout.strip()
    if mmcv_operators.cuda_fits(answer.stdout, torch_cuda):
        return nvcc
    say(
        f'note: {nvcc} is of another CUDA version than torch ({torch_cuda}), so the operators of '
        'mmcv are compiled for the CPU only, and the quickstart trains on the CPU'
    )
    return None


def install(env: Environment) -> None:
    """Installs everything that is not there yet, and this checkout as an editable package."""
    fresh = 'torch' not in env.installed()
    say(
        'Installing the packages'
        + (
            f' (downloads {DOWNLOAD_GB} GB; {env.stack.folder} takes 5.8 GB afterwards)'
            if fresh
            else ''
        )
        + ' ...'
    )
    # Without build isolation the pinned build tools do the building, so they come first.
    pip(
        env,
        'The build tools could not be installed',
        'install',
        *constraint_options(env),
        *requirement_options(env, ('build',)),
    )
    mmcv = []
    if env.installed().get(env.stack.mmcv) != mmcv_version(env):
        # Named by its file, the wheel found or compiled here wins over any other.
        wheel = own_wheel(env)
        mmcv = [str(wheel)] if wheel else ['--only-binary', env.stack.mmcv]
    pip(
        env,
        'The packages could not be installed',
        'install',
        '--no-build-isolation',
        *mmcv,
        *constraint_options(env),
        *requirement_options(env, env.stack.purposes),
        '--editable',
        str(env.root),
    )


def own_wheel(env: Environment) -> Path | None:
    """The wheel of mmcv that lies in the environment, if there is one."""
    return find_mmcv_wheel(env, [str(env.wheels)])


def find_mmcv_wheel(env: Environment, folders: list[str]) -> Path | None:
    """A wheel of the stack's mmcv for this interpreter and machine, if a folder has one."""
    return mmcv_operators.find_wheel(
        folders, env.stack.mmcv, mmcv_version(env), sys.version_info[:2], platform.machine()
    )


def verify(env: Environment, machine: checks.Machine) -> dict:
    """Imports everything, mends what can be mended, and returns facts for the stamp."""
    say('Checking that everything imports ...')
    facts = import_everything(env)
    if 'cv2' in facts['errors'] and checks.check_opencv_libraries(machine):
        # Both builds of OpenCV are installed, since dependencies ask for both, and the later one
        # lies on top. The one without windows needs no library of the system.
        say("Putting OpenCV's build without windows on top ...")
        pip(
            env,
            'OpenCV could not be installed',
            'install',
            '--force-reinstall',
            '--no-deps',
            *constraint_options(env),
            'opencv-python-headless',
        )
        facts = import_everything(env)
    if 'mmcv.ops' in facts['errors'] and 'cv2' not in facts['errors']:
        say(
            f'The installed mmcv operators do not load ({facts["errors"]["mmcv.ops"]}).\n'
            'Compiling them from source instead ...'
        )
        missing = checks.check_compiler(machine)
        if missing:
            raise SetupError(checks.report(missing))
        shutil.rmtree(env.wheels)
        env.wheels.mkdir()
        compile_operators(env, machine)
        pip(
            env,
            'mmcv could not be installed',
            'install',
            '--force-reinstall',
            '--no-deps',
            str(own_wheel(env)),
        )
        facts = import_everything(env)
    errors = facts.pop('errors')
    if errors:
        lines = [f'  {name}: {text}' for name, text in errors.items()]
        raise SetupError(
            '\n'.join(
                [
                    'These do not import after set-up:',
                    *lines,
                    f'To make the environment anew: make clean-env {env.stack.target}',
                ]
            )
        )
    return facts


def import_everything(env: Environment) -> dict:
    program = Path(__file__).with_name('verify.py')
    answer = subprocess.run(
        [str(env.python), str(program)],
        capture_output=True,
        text=True,
        cwd=env.root,
        env=pip_environment(env),
    )
    lines = answer.stdout.strip().splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError):
        raise SetupError(
            f'The check of the imports died (status {answer.returncode}):\n{answer.stderr[-2000:]}'
        ) from None


def write_run_environment(env: Environment, facts: dict) -> None:
    """Variables for what make runs: without operators for the GPU, everything is on the CPU."""
    cpu_only = facts['gpu'] and facts['operators'] == 'cpu'
    (env.folder / 'run.env').write_text('CUDA_VISIBLE_DEVICES=\n' if cpu_only else '')
    if cpu_only:
        say(
            "note: mmcv's operators are for the CPU only, so the quickstart and the tests leave "
            'the GPU alone'
        )


def pip_environment(env: Environment) -> dict[str, str]:
    """Keeps pip inside the environment: its temporary files, no cache but one the user names."""
    environment = dict(os.environ)
    for name in (
        'PYTHONPATH',
        'PYTHONHOME',
        'PIP_USER',
        'PIP_TARGET',
        'PIP_PREFIX',
        'PIP_REQUIRE_VIRTUALENV',
    ):
        environment.pop(name, None)
    environment.update(
        PIP_DISABLE_PIP_VERSION_CHECK='1',
        PIP_NO_INPUT='1',
        PYTHONNOUSERSITE='1',
        MPLCONFIGDIR=str(env.folder / 'cache' / 'matplotlib'),
    )
    if env.temporary.exists():
        environment['TMPDIR'] = str(env.temporary)
    if 'PIP_CACHE_DIR' not in os.environ:
        environment['PIP_NO_CACHE_DIR'] = '1'
    return environment


def pip(
    env: Environment, failure: str, *arguments: str, environment: dict[str, str] | None = None
) -> None:
    """Runs the environment's pip; see :func:`run`."""
    run(env, [str(env.python), '-m', 'pip', *arguments], failure, environment)


def constraint_options(env: Environment) -> list[str]:
    path = env.folder / 'constraints.txt'
    path.write_text(constraints_beside(env.constraints(), env.installed()))
    return ['--constraint', str(path)]


def requirement_options(env: Environment, purposes: tuple[str, ...]) -> list[str]:
    options = []
    for purpose in purposes:
        options += ['--requirement', str(env.root / 'requirements' / f'{purpose}.txt')]
    return options


def mmcv_version(env: Environment) -> str:
    return read_pin(env.constraints(), env.stack.mmcv)


def torch_index() -> str:
    return os.environ.get('KRONATTN_TORCH_INDEX', '')


def warn_of_index(env: Environment) -> None:
    index = torch_index()
    if index and env.read_stamp().get('index', index) != index:
        say(
            f'note: KRONATTN_TORCH_INDEX is heeded only when {env.stack.folder} is made: '
            f'make clean-env {env.stack.target}'
        )


def run(
    env: Environment, command: list[str], failure: str, environment: dict[str, str] | None = None
) -> None:
    """Runs a command with its output visible.

    Raises:
        SetupError: If it fails, with ``failure`` as its message.
    """
    status = subprocess.run(
        command, env=environment or pip_environment(env), stdin=subprocess.DEVNULL
    ).returncode
    if status:
        raise SetupError(f'{failure} (status {status}); the reason is above.')


def say(text: str) -> None:
    print(text, flush=True)
