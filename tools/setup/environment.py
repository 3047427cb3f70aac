"""The state of an environment: whether it is complete, and the stamp that says so.

There are two, since OpenMMLab comes in two sets of distributions with the same modules, which
exclude each other: ``.venv`` with the maintained forks, which everything but ``make
test-originals`` uses, and ``.venv-originals``.

The stamp alone is not trusted. What it lists must still be there: each installed distribution in
its version, each entry of site-packages, and the compiled libraries in their size.
"""

import hashlib
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STAMP = 'kronattn_mm.json'
# Too large to be checked by content on each call; a size tells a truncated file.
LIBRARIES = ('mmcv/_ext*.so', 'cv2/cv2*.so', 'torch/lib/libtorch_cpu.so', 'torchvision/_C*.so')
_PINNED = re.compile(r'^([\w.-]+)={2,3}', re.MULTILINE)
LINKED = ('tools', 'configs', 'model-index.yml')


@dataclass(frozen=True)
class Stack:
    """One of OpenMMLab's two sets of distributions.

    Attributes:
        name: Also the name of its requirements file.
        folder: The environment's folder in the checkout.
        mmcv: The distribution with mmcv's operators, which may have to be compiled.
        target: The target of make that makes the environment.
        constraints: Files with the versions; a later one overrides the ones before.
    """

    name: str
    folder: str
    mmcv: str
    target: str
    constraints: tuple[str, ...] = ('constraints',)

    @property
    def purposes(self) -> tuple[str, ...]:
        """The requirements files of what is installed."""
        return ('build', 'torch', self.name, 'tools', 'tests')


STACKS = {
    'forks': Stack('forks', '.venv', 'onedl-mmcv', 'setup'),
    'originals': Stack(
        'originals',
        '.venv-originals',
        'mmcv',
        'setup-originals',
        ('constraints', 'constraints-originals'),
    ),
}


class Environment:
    """A virtual environment that belongs to one checkout.

    Args:
        root: The checkout.
        stack: Which OpenMMLab is in it.
    """

    def __init__(self, root: Path = ROOT, stack: Stack = STACKS['forks']) -> None:
        self.root = Path(root)
        self.stack = stack
        self.folder = self.root / stack.folder
        self.python = self.folder / 'bin' / 'python'
        self.wheels = self.folder / 'wheels'
        self.build = self.folder / 'build'
        self.temporary = self.folder / 'tmp'
        self.stamp = self.folder / STAMP

    def python_version(self) -> str | None:
        """The version of the environment's interpreter, or None where it does not run."""
        command = [str(self.python), '-I', '-c', 'import sys; print(sys.version.split()[0])']
        try:
            answer = subprocess.run(command, capture_output=True, text=True)
        except OSError:
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None

    def site_packages(self) -> Path | None:
        found = sorted(self.folder.glob('lib/python3.*/site-packages'))
        return found[-1] if found else None

    def installed(self) -> dict[str, str]:
        """Versions of the installed distributions by normalised name."""
        site = self.site_packages()
        return read_distributions(os.listdir(site)) if site else {}

    def requirement_files(self) -> list[Path]:
        folder = self.root / 'requirements'
        names = (*self.stack.constraints, *self.stack.purposes)
        return [folder / f'{name}.txt' for name in names]

    def constraints(self) -> str:
        """The text of the constraints for the environment's stack."""
        folder = self.root / 'requirements'
        text = ''
        for name in self.stack.constraints:
            text = overridden(text, (folder / f'{name}.txt').read_text())
        return text

    def fingerprint(self) -> str:
        """A hash of all that decides what has to be installed."""
        digest = hashlib.sha256()
        inputs = [
            *self.requirement_files(),
            self.root / 'setup.py',
            self.root / 'kronattn_mm' / 'version.py',
        ]
        for path in inputs:
            digest.update(path.name.encode() + b'\0' + path.read_bytes() + b'\0')
        return digest.hexdigest()

    def why_incomplete(self) -> str | None:
        """The reason why set-up has work to do, or None."""
        if not self.python.exists():
            return 'there is no environment yet'
        try:
            stamp = json.loads(self.stamp.read_text())
        except (OSError, ValueError):
            return 'its set-up has not come to an end yet'
        version = self.python_version()
        if version is None:
            return f'its interpreter does not run ({self.python})'
        if stamp.get('python') != version:
            return f'its interpreter changed from {stamp.get("python")} to {version}'
        if stamp.get('root') != str(self.root):
            return f'it was made for another folder ({stamp.get("root")})'
        if stamp.get('fingerprint') != self.fingerprint():
            return 'the requirements changed'
        return self._why_damaged(stamp)

    def _why_damaged(self, stamp: dict) -> str | None:
        site = self.site_packages()
        entries = set(os.listdir(site)) if site else set()
        installed = read_distributions(entries)
        for name, version in stamp['distributions'].items():
            if installed.get(name) != version:
                return f'{name} {version} was set up, and now it is {installed.get(name)}'
        lost = sorted(set(stamp['entries']) - entries)
        if lost:
            return f'{", ".join(lost[:3])} disappeared from {site}'
        for name, size in stamp['libraries'].items():
            path = site / name
            if not path.exists() or path.stat().st_size != size:
                return f'{name} is missing or damaged'
        for name in LINKED:
            if (self.root / name).exists() and not (self.root / 'kronattn_mm/.mim' / name).exists():
                return f'kronattn_mm/.mim/{name} is missing'
        return None

    def write_stamp(self, **facts: object) -> None:
        """Records the present state as complete, together with further facts."""
        site = self.site_packages()
        libraries = {
            str(path.relative_to(site)): path.stat().st_size
            for pattern in LIBRARIES
            for path in site.glob(pattern)
        }
        entries = sorted(name for name in os.listdir(site) if name != '__pycache__')
        state = dict(
            python=self.python_version(),
            root=str(self.root),
            fingerprint=self.fingerprint(),
            distributions=self.installed(),
            entries=entries,
            libraries=libraries,
            **facts,
        )
        unfinished = self.stamp.with_suffix('.tmp')
        unfinished.write_text(json.dumps(state, indent=1))
        unfinished.replace(self.stamp)

    def read_stamp(self) -> dict:
        try:
            return json.loads(self.stamp.read_text())
        except (OSError, ValueError):
            return {}


def normalise(name: str) -> str:
    """The form in which distribution names are compared (PEP 503)."""
    return re.sub(r'[-_.]+', '-', name).lower()


def read_distributions(entries: 'os.PathLike | list[str] | set[str]') -> dict[str, str]:
    """Names and versions from the names of the .dist-info folders."""
    found = {}
    for entry in entries:
        match = re.fullmatch(r'(.+)-([^-]+)\.dist-info', entry)
        if match:
            found[normalise(match[1])] = match[2]
    return found


def read_pin(constraints: str, name: str) -> str:
    """The version to which a constraints file pins a distribution with ``===``."""
    match = re.search(rf'^{re.escape(name)}===(\S+)', constraints, re.MULTILINE)
    if not match:
        raise ValueError(f'no line {name}===<version> among the constraints')
    return match[1]


def overridden(constraints: str, later: str) -> str:
    """Constraints without the lines about what ``later`` pins, followed by ``later``."""
    pinned = {normalise(name) for name in _PINNED.findall(later)}
    kept = []
    for line in constraints.splitlines(keepends=True):
        name = _PINNED.match(line)
        if not name or normalise(name[1]) not in pinned:
            kept.append(line)
    return ''.join(kept) + later


def constraints_beside(constraints: str, installed: dict[str, str]) -> str:
    """The constraints, made to fit local builds of torch that are already installed.

    A torch index for one kind of machine has builds such as 2.13.0+cpu, which ``===2.13.0``
    excludes. Where torch and torchvision are installed as the same local build of the pinned
    versions, that build is pinned instead.

    Args:
        constraints: Text of the constraints file.
        installed: Versions by name, as :meth:`Environment.installed` gives them.
    """
    local = {}
    for name in ('torch', 'torchvision'):
        public, _, label = installed.get(name, '').partition('+')
        if not label or public != read_pin(constraints, name):
            return constraints
        local[name] = label
    if local['torch'] != local['torchvision']:
        return constraints
    for name, label in local.items():
        pinned = f'{name}==={read_pin(constraints, name)}'
        constraints = re.sub(
            rf'^{re.escape(pinned)}$', f'{pinned}+{label}', constraints, flags=re.MULTILINE
        )
    return constraints
