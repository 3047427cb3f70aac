"""What the machine must have before anything is installed.

Each check answers from probes of the machine (:class:`Machine`), which tests replace, and returns
findings; all of them are shown at once, so that one round of ``apt-get install`` mends all.
"""

import ctypes
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

GIB = 2**30

# What loading OpenCV's build with windows (opencv-python) needs from the system. Its build
# without windows (opencv-python-headless) needs none of them.
OPENCV_LIBRARIES = {'libGL.so.1': 'libgl1', 'libgthread-2.0.so.0': 'libglib2.0-0'}


@dataclass(frozen=True)
class Finding:
    """One thing about the machine that the user should know.

    Attributes:
        text: What is missing and what it is needed for.
        package: The Debian or Ubuntu package that brings it, or None.
        blocks: Whether set-up cannot go on without it.
    """

    text: str
    package: str | None = None
    blocks: bool = True


class Machine:
    """Probes of this machine."""

    def which(self, program: str) -> str | None:
        return shutil.which(program)

    def loads(self, library: str) -> bool:
        """Whether the dynamic linker finds a shared library."""
        try:
            ctypes.CDLL(library)
        except OSError:
            return False
        return True

    def has_module(self, name: str) -> bool:
        try:
            __import__(name)
        except ImportError:
            return False
        return True

    def has_python_headers(self) -> bool:
        return (Path(sysconfig.get_path('include')) / 'Python.h').is_file()

    def python_tag(self) -> str:
        """For example '3.11'."""
        return f'{sys.version_info[0]}.{sys.version_info[1]}'

    def free_bytes(self, folder: Path) -> int:
        return shutil.disk_usage(folder).free

    def memory_bytes(self) -> int:
        return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')

    def cores(self) -> int:
        """The cores this process may use, which in a container can be fewer than exist."""
        return len(os.sched_getaffinity(0))

    def has_gpu(self) -> bool:
        return os.path.exists('/dev/nvidia0') or os.path.exists('/dev/dxg')

    def environment(self, name: str) -> str:
        return os.environ.get(name, '')


def check_venv(machine: Machine) -> list[Finding]:
    """Debian and Ubuntu ship Python without the means to make environments."""
    if machine.has_module('venv') and machine.has_module('ensurepip'):
        return []
    return [
        Finding(
            'Python cannot make virtual environments (modules venv, ensurepip)',
            f'python{machine.python_tag()}-venv',
        )
    ]


def check_disk(machine: Machine, folder: Path, needed: float) -> list[Finding]:
    """Args:
    machine: The probes.
    folder: Where the environment will lie.
    needed: GiB.
    """
    free = machine.free_bytes(folder) / GIB
    if free >= needed:
        return []
    return [Finding(f'{free:.1f} GB are free under {folder}, and set-up needs {needed:.0f} GB')]


def check_compiler(machine: Machine) -> list[Finding]:
    """What compiling mmcv's operators needs."""
    reason = "to compile mmcv's operators"
    findings = []
    compiler = machine.environment('CXX')
    if not any(machine.which(name) for name in ([compiler] if compiler else ['c++', 'g++'])):
        named = f' (CXX={compiler})' if compiler else ''
        findings.append(Finding(f'no C++ compiler{named}, needed {reason}', 'g++'))
    if not machine.has_python_headers():
        findings.append(
            Finding(
                f"Python's C headers (Python.h) are missing, needed {reason}",
                f'python{machine.python_tag()}-dev',
            )
        )
    return findings


def check_opencv_libraries(machine: Machine) -> list[Finding]:
    """Missing ones are no obstacle: OpenCV's build without windows is taken instead."""
    missing = [name for name in OPENCV_LIBRARIES if not machine.loads(name)]
    if not missing:
        return []
    return [
        Finding(
            f'{" and ".join(missing)} missing: OpenCV is installed in its build without '
            'windows, which does all that is needed here; cv2.imshow needs them',
            ' '.join(OPENCV_LIBRARIES[name] for name in missing),
            blocks=False,
        )
    ]


def check_gpu(machine: Machine, compiles: bool) -> list[Finding]:
    """Whether the GPU can be used by mmcv's operators.

    Args:
        machine: The probes.
        compiles: Whether the operators are compiled here, rather than taken from a wheel.
    """
    if not machine.has_gpu() or not compiles or find_nvcc(machine):
        return []
    return [
        Finding(
            "there is a GPU but no CUDA compiler (nvcc): mmcv's operators will be for the "
            'CPU only, and the quickstart trains on the CPU. For the GPU, install the '
            "CUDA toolkit of torch's CUDA version, then: make clean-env setup",
            blocks=False,
        )
    ]


def find_nvcc(machine: Machine) -> str | None:
    """The CUDA compiler, by CUDA_HOME or on the PATH."""
    home = machine.environment('CUDA_HOME') or machine.environment('CUDA_PATH')
    if home:
        return machine.which(os.path.join(home, 'bin', 'nvcc'))
    return machine.which('nvcc') or machine.which('/usr/local/cuda/bin/nvcc')


def report(findings: list[Finding]) -> str:
    """All findings as one text; ends with a single install command for the blocking ones."""
    lines = []
    blocking = [finding for finding in findings if finding.blocks]
    for finding in findings:
        if not finding.blocks:
            lines.append(f'note: {finding.text}{_package(finding)}')
    if blocking:
        lines.append('This machine lacks what set-up needs; nothing was installed:')
        lines.extend(f'  - {finding.text}{_package(finding)}' for finding in blocking)
        packages = ' '.join(finding.package for finding in blocking if finding.package)
        if packages:
            lines.append(f'On Debian or Ubuntu: sudo apt-get install {packages}')
    return '\n'.join(lines)


def _package(finding: Finding) -> str:
    return f' (package {finding.package})' if finding.package else ''
