"""The set-up scripts are run by file, not installed: this makes them importable."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'tools' / 'setup'))

CONSTRAINTS = """\
# a comment
torch===2.13.0
torchvision===0.28.0
onedl-mmcv===2.3.6
numpy==2.2.6
setuptools==84.2.1
"""

ORIGINALS = """\
mmcv===2.1.0
setuptools==81.0.0
"""


class FakeMachine:
    """Probes of a machine that has everything, unless a test takes something away."""

    def __init__(self) -> None:
        self.programs = {'g++', 'c++', 'gcc'}
        self.missing_libraries: set[str] = set()
        self.missing_modules: set[str] = set()
        self.headers = True
        self.free = 100 * 2**30
        self.memory = 64 * 2**30
        self.core_count = 4
        self.gpu = False
        self.variables: dict[str, str] = {}

    def which(self, program: str) -> str | None:
        return f'/usr/bin/{program}' if program in self.programs else None

    def loads(self, library: str) -> bool:
        return library not in self.missing_libraries

    def has_module(self, name: str) -> bool:
        return name not in self.missing_modules

    def has_python_headers(self) -> bool:
        return self.headers

    def python_tag(self) -> str:
        return '3.11'

    def free_bytes(self, folder: Path) -> int:
        return self.free

    def memory_bytes(self) -> int:
        return self.memory

    def cores(self) -> int:
        return self.core_count

    def has_gpu(self) -> bool:
        return self.gpu

    def environment(self, name: str) -> str:
        return self.variables.get(name, '')


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what set-up reads of a checkout."""
    texts = {'constraints': CONSTRAINTS, 'constraints-originals': ORIGINALS}
    for name in (*texts, 'build', 'torch', 'forks', 'originals', 'tools', 'tests'):
        path = tmp_path / 'requirements' / f'{name}.txt'
        path.parent.mkdir(exist_ok=True)
        path.write_text(texts.get(name, '# nothing\n'))
    (tmp_path / 'setup.py').write_text('')
    (tmp_path / 'kronattn_mm').mkdir()
    (tmp_path / 'kronattn_mm' / 'version.py').write_text("__version__ = '0'\n")
    return tmp_path
