"""Packs kronattn_mm, with tools/ and configs/ inside as ``kronattn_mm/.mim`` for ``mim``.

``mim train kronattn_mm CONFIG`` runs ``.mim/tools/train.py`` of the installed package. A wheel
holds copies; an editable install holds links, so that editing tools/ or configs/ takes effect at
once. The links are made by build_py because that is the command which both ``pip install -e``
(PEP 660) and the older ``setup.py develop`` run; keying on ``sys.argv`` misses the former.
"""

import os
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PACKAGE = 'kronattn_mm'
MIM_SOURCES = ('tools', 'configs', 'model-index.yml')


def read_version() -> str:
    namespace: dict = {}
    exec((ROOT / PACKAGE / 'version.py').read_text(encoding='utf-8'), namespace)
    return namespace['__version__']


def read_requirements(purpose: str) -> list[str]:
    """The requirement lines of requirements/<purpose>.txt, without comments."""
    lines = (ROOT / 'requirements' / f'{purpose}.txt').read_text(encoding='utf-8').splitlines()
    stripped = (line.split('#')[0].strip() for line in lines)
    return [line for line in stripped if line]


def readme() -> str:
    path = ROOT / 'README.md'
    return path.read_text(encoding='utf-8') if path.exists() else ''


class BuildPyWithMim(build_py):
    """build_py that also puts tools/, configs/ and model-index.yml into ``.mim``."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            self._link(ROOT / PACKAGE / '.mim')
        else:
            for source, target in self._mim_files().items():
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copyfile(source, target)
                shutil.copymode(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return super().get_outputs(include_bytecode) + list(self._mim_files().values())

    def _mim_files(self) -> dict[str, str]:
        """From each file of MIM_SOURCES to its place in the build folder."""
        if self.editable_mode:
            return {}
        target_root = Path(self.build_lib) / PACKAGE / '.mim'
        files = {}
        for name in MIM_SOURCES:
            source = ROOT / name
            for path in [source] if source.is_file() else sorted(source.rglob('*')):
                relative = path.relative_to(ROOT)
                # Set-up of a checkout has no meaning in an installed package.
                skipped = (
                    relative.parts[:2] == ('tools', 'setup') or '__pycache__' in relative.parts
                )
                if path.is_file() and not skipped:
                    files[str(path)] = str(target_root / relative)
        return files

    @staticmethod
    def _link(mim: Path) -> None:
        mim.mkdir(exist_ok=True)
        for name in MIM_SOURCES:
            link = mim / name
            if link.is_symlink():
                link.unlink()
            if (ROOT / name).exists():
                link.symlink_to(os.path.relpath(ROOT / name, mim))


setup(
    name='kronattn-mm',
    version=read_version(),
    description='Attention for any OpenMMLab detector, segmenter or classifier, by config alone',
    long_description=readme(),
    long_description_content_type='text/markdown',
    license_expression='Apache-2.0',
    license_files=['LICENSE'],
    classifiers=[
        'Development Status :: 4 - Beta',
        'Intended Audience :: Science/Research',
        'Operating System :: POSIX :: Linux',
        'Programming Language :: Python :: 3.10',
        'Programming Language :: Python :: 3.11',
        'Programming Language :: Python :: 3.12',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
    ],
    keywords=['attention', 'object detection', 'instance segmentation', 'OpenMMLab'],
    python_requires='>=3.10',
    # Nothing of OpenMMLab: its two distributions of the same modules exclude each other, and
    # which one is installed is the user's choice (extras forks and originals).
    install_requires=['torch'],
    extras_require={
        purpose: read_requirements(purpose)
        for purpose in ('forks', 'originals', 'tools', 'tests', 'docs')
    },
    entry_points={'console_scripts': ['kronattn = kronattn_mm.cli.command:main']},
    packages=find_packages(include=[PACKAGE, f'{PACKAGE}.*']),
    package_data={PACKAGE: ['py.typed', '**/*.html', '**/*.css', '**/*.j2', '**/*.json']},
    exclude_package_data={PACKAGE: ['.mim/**']},
    include_package_data=False,
    cmdclass={'build_py': BuildPyWithMim},
    zip_safe=False,
)
