"""The source archive and the wheel: complete, with tools and configs, and without OpenMMLab."""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from kronattn_mm.version import __version__

ROOT = Path(__file__).resolve().parents[1]
IGNORED = shutil.ignore_patterns('__pycache__', '.mim', '*.egg-info', '.DS_Store')
# What a source archive is for: everything that is needed to build, test and document the package.
FILES = (
    'setup.py',
    'MANIFEST.in',
    'pyproject.toml',
    'LICENSE',
    'README.md',
    'CHANGELOG.md',
    'CONTRIBUTING.md',
    'Makefile',
    'model-index.yml',
)
FOLDERS = ('kronattn_mm', 'configs', 'tools', 'requirements', 'tests', 'docs')


def run(*command, cwd, **variables):
    answer = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout.strip()


def build(kind, source, target):
    """Calls the build backend as pip does, with this interpreter's setuptools."""
    program = (
        f'import setuptools.build_meta as backend; print(backend.build_{kind}({str(target)!r}))'
    )
    return target / run(sys.executable, '-c', program, cwd=source).splitlines()[-1]


@pytest.fixture(scope='module')
def source(tmp_path_factory):
    """A copy of what belongs to the package, since building writes beside its sources."""
    folder = tmp_path_factory.mktemp('checkout')
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=IGNORED)
    # What work in a checkout leaves, and what must not come along.
    for name in (
        'out/run/epoch_1.pth',
        'data/a.jpg',
        '.venv/bin/python',
        'tools/__pycache__/a.pyc',
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.fixture(scope='module')
def archive(source, tmp_path_factory):
    return build('sdist', source, tmp_path_factory.mktemp('sdist'))


@pytest.fixture(scope='module')
def wheel(archive, tmp_path_factory):
    """Built from the source archive, so that what the archive lacks shows here."""
    folder = tmp_path_factory.mktemp('unpacked')
    with tarfile.open(archive) as tar:
        tar.extractall(folder)
    return build('wheel', next(folder.iterdir()), tmp_path_factory.mktemp('wheel'))


def files_below(*names, root=ROOT):
    """The files of a checkout below some folders, as paths from its root."""
    found = set()
    for name in names:
        found |= {
            str(path.relative_to(root))
            for path in (root / name).rglob('*')
            if path.is_file() and not {'__pycache__', '.mim'} & set(path.parts)
        }
    return found


def test_the_source_archive_is_complete(archive, source):
    with tarfile.open(archive) as tar:
        names = {member.name.split('/', 1)[-1] for member in tar if member.isfile()}
    wanted = files_below(*FOLDERS, root=source) | set(FILES)
    assert wanted <= names
    # Beside it there is what setuptools itself adds.
    assert {name.split('/')[0] for name in names - wanted} <= {
        'PKG-INFO',
        'setup.cfg',
        'kronattn_mm.egg-info',
    }


def test_the_wheel_has_tools_and_configs_inside(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = {
        name for name in files_below('configs', 'tools') if not name.startswith('tools/setup/')
    }
    assert shipped
    assert {f'kronattn_mm/.mim/{name}' for name in shipped} <= names
    assert {name for name in files_below('kronattn_mm') if name.endswith('.py')} <= names
    assert not any(
        '__pycache__' in name
        or name.startswith(('tests/', 'tools/'))
        or '/.mim/tools/setup/' in name
        for name in names
    )


def test_nothing_of_openmmlab_is_required(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith('/METADATA'))
        metadata = email.message_from_bytes(archive.read(name))
    requires = metadata.get_all('Requires-Dist')
    assert [line for line in requires if 'extra ==' not in line] == ['torch']
    assert metadata['Requires-Python'] == '>=3.10'
    assert metadata['License-Expression'] == 'Apache-2.0'
    assert metadata['Version'] == __version__
    assert set(metadata.get_all('Provides-Extra')) == {
        'forks',
        'originals',
        'tools',
        'tests',
        'docs',
    }
    assert metadata['License-File'] == 'LICENSE'
    assert metadata['Description-Content-Type'] == 'text/markdown'
    assert metadata.get_payload().strip() == (ROOT / 'README.md').read_text('utf-8').strip()


def test_extras_are_the_requirement_files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith('/METADATA'))
        metadata = email.message_from_bytes(archive.read(name))
    for extra in metadata.get_all('Provides-Extra'):
        lines = (ROOT / 'requirements' / f'{extra}.txt').read_text('utf-8').splitlines()
        wanted = {line.split('#')[0].strip() for line in lines} - {''}
        found = {
            line.split(';')[0].strip()
            for line in metadata.get_all('Requires-Dist')
            if f'extra == "{extra}"' in line
        }
        assert set(map(parts_of, found)) == set(map(parts_of, wanted)), extra


def parts_of(requirement):
    """Name and bounds of a requirement; setuptools sorts the bounds."""
    name = re.match(r'[\w.-]+', requirement)[0]
    return name, frozenset(requirement[len(name) :].split(','))


def test_the_wheel_brings_the_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith('/entry_points.txt'))
        assert 'kronattn = kronattn_mm.cli.command:main' in archive.read(name).decode()


def empty_environment(folder):
    """An environment without anything, and its site-packages."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob('lib/python3.*/site-packages')
    return site


def install(package, folder, *options):
    """pip's own installation into an environment, with nothing but this package."""
    pip = [sys.executable, '-m', 'pip', '--python', folder / 'bin' / 'python', 'install']
    run(*pip, '--quiet', '--no-deps', '--no-index', *options, package, cwd=folder)


@pytest.fixture(scope='module')
def site(wheel, tmp_path_factory):
    """site-packages of an empty environment with the wheel alone in it."""
    folder = tmp_path_factory.mktemp('environment')
    site = empty_environment(folder)
    install(wheel, folder)
    return site


def test_the_wheel_says_what_it_lacks_in_an_empty_environment(site):
    python = site.parents[2] / 'bin' / 'python'
    assert (
        run(
            python,
            '-I',
            '-c',
            'import importlib.metadata as m; print(m.version("kronattn-mm"))',
            cwd=site,
        )
        == __version__
    )
    answer = subprocess.run(
        [str(python), '-I', '-c', 'import kronattn_mm.ops'],
        capture_output=True,
        text=True,
        cwd=site,
    )
    assert "No module named 'torch'" in answer.stderr


def test_the_installed_wheel_imports_with_torch_alone(site, tmp_path):
    """With torch's folder alone beside it; anything of OpenMMLab would not be found."""
    import torch

    torch_site = Path(torch.__file__).parents[1]
    alone = tmp_path / 'torch-alone'
    alone.mkdir()
    for entry in torch_site.iterdir():
        if not entry.name.startswith(('mm', 'onedl', 'kronattn', '__editable__')):
            (alone / entry.name).symlink_to(entry)
    python = site.parents[2] / 'bin' / 'python'
    program = (
        'import sys, kronattn_mm, kronattn_mm.ops, kronattn_mm.layers; '
        'assert not any(name.startswith("mm") and not name.startswith("mmap") '
        'for name in sys.modules), "OpenMMLab"; print(kronattn_mm.__file__)'
    )
    shown = run(python, '-c', program, cwd=tmp_path, PYTHONPATH=f'{site}{os.pathsep}{alone}')
    assert Path(shown).parent == site / 'kronattn_mm'


def lend_libraries(site):
    """Put the packages of this environment behind what is installed in another one.

    A folder named in a .pth file is searched last, and .pth files in it are not read: this
    checkout, installed there as editable, stays out.
    """
    import torch

    (site / 'libraries.pth').write_text(f'{Path(torch.__file__).parents[1]}\n')


TRIAL = """
import torch
import kronattn_mm
from mmengine.config import Config
from mmengine.registry import MODELS
from mmengine.utils import get_installed_path

configs = get_installed_path('kronattn_mm') + '/.mim/configs/'
file = configs + 'efficient_attention/mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco.py'
layer = Config.fromfile(file).model.neck.insert[0].layer
built = MODELS.build(dict(layer, in_channels=8, key_channels=4, value_channels=4))
x = torch.randn(1, 8, 4, 5)
assert torch.equal(built.eval()(x), x), 'an untrained layer changes nothing'
print(kronattn_mm.__file__, type(built).__module__)
"""


def try_out(site, folder):
    """Import, configs, a layer and the command, in the environment of ``site``."""
    bin = site.parents[2] / 'bin'
    shown = run(bin / 'python', '-W', 'ignore', '-c', TRIAL, cwd=folder).splitlines()[-1].split()
    assert shown == [
        str(site / 'kronattn_mm' / '__init__.py'),
        'kronattn_mm.layers.efficient_attention',
    ]
    said = run(bin / 'kronattn', '--help', cwd=folder)
    assert 'usage: kronattn' in said and 'points' in said


def test_the_installed_wheel_works_alone(wheel, tmp_path):
    """The package comes from the wheel, its libraries from the environment of the tests."""
    pytest.importorskip('mmdet')
    folder = tmp_path / 'environment'
    site = empty_environment(folder)
    lend_libraries(site)
    install(wheel, folder)
    try_out(site, tmp_path)


@pytest.mark.slow
def test_the_source_archive_installs_and_works(archive, tmp_path):
    """As `pip install kronattn_mm-*.tar.gz` does it, with this environment's build tools."""
    pytest.importorskip('mmdet')
    folder = tmp_path / 'environment'
    site = empty_environment(folder)
    lend_libraries(site)
    install(archive, folder, '--no-build-isolation')
    try_out(site, tmp_path)


def test_editable_install_links_tools_and_configs(source, tmp_path):
    program = (
        f'import setuptools.build_meta as backend; print(backend.build_editable({str(tmp_path)!r}))'
    )
    run(sys.executable, '-c', program, cwd=source)
    mim = source / 'kronattn_mm' / '.mim'
    for name in ('tools', 'configs'):
        assert (mim / name).is_symlink()
        assert (mim / name).resolve() == (source / name).resolve()
    (editable,) = tmp_path.glob('*.whl')
    assert not any('.mim' in name for name in zipfile.ZipFile(editable).namelist())
    # and once more, over the links that are there
    run(sys.executable, '-c', program, cwd=source)
    assert (mim / 'tools').is_symlink()


def test_a_wheel_built_beside_an_editable_install_holds_files(source, tmp_path):
    self_built = build('wheel', source, tmp_path)
    names = zipfile.ZipFile(self_built).namelist()
    assert len(names) == len(set(names))
    assert any(name.startswith('kronattn_mm/.mim/configs/') for name in names)


def test_model_index_names_files_that_exist():
    path = ROOT / 'model-index.yml'
    if not path.exists():
        pytest.skip('there is no model-index.yml')
    yaml = pytest.importorskip('yaml')
    for name in yaml.safe_load(path.read_text())['Import']:
        assert (ROOT / name).is_file(), name
