"""When set-up has work to do, and which versions it wants."""

import json
import re
import sys
import venv
from pathlib import Path

import environment
import pytest
from environment import (
    STACKS,
    Environment,
    constraints_beside,
    overridden,
    read_distributions,
    read_pin,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ready(checkout):
    """A checkout with a complete environment: one distribution and one library."""
    env = Environment(checkout)
    venv.create(env.folder, with_pip=False, symlinks=True)
    site = env.site_packages()
    (site / 'torch' / 'lib').mkdir(parents=True)
    (site / 'torch' / 'lib' / 'libtorch_cpu.so').write_bytes(b'12345')
    (site / 'torch-2.13.0.dist-info').mkdir()
    (checkout / 'tools').mkdir()
    mim = checkout / 'kronattn_mm' / '.mim'
    mim.mkdir()
    (mim / 'tools').symlink_to('../../tools')
    env.write_stamp(operators='cpu')
    return env


def test_a_complete_environment_needs_nothing(ready):
    assert ready.why_incomplete() is None
    assert ready.read_stamp()['operators'] == 'cpu'
    assert ready.read_stamp()['distributions'] == {'torch': '2.13.0'}


def test_no_environment(checkout):
    assert 'no environment' in Environment(checkout).why_incomplete()


def test_without_stamp_set_up_was_interrupted(ready):
    ready.stamp.unlink()
    assert 'not come to an end' in ready.why_incomplete()
    ready.stamp.write_text('{"half": ')
    assert 'not come to an end' in ready.why_incomplete()


def test_changed_requirements(ready):
    path = ready.root / 'requirements' / 'tools.txt'
    path.write_text('rich\n')
    assert 'requirements changed' in ready.why_incomplete()


def test_changed_package_version(ready):
    site = ready.site_packages()
    (site / 'torch-2.13.0.dist-info').rename(site / 'torch-2.14.0.dist-info')
    assert 'torch 2.13.0 was set up, and now it is 2.14.0' in ready.why_incomplete()


def test_removed_package(ready):
    (ready.site_packages() / 'torch-2.13.0.dist-info').rmdir()
    assert 'now it is None' in ready.why_incomplete()


def test_truncated_library(ready):
    (ready.site_packages() / 'torch' / 'lib' / 'libtorch_cpu.so').write_bytes(b'123')
    assert 'missing or damaged' in ready.why_incomplete()


def test_removed_link_of_mim(ready):
    (ready.root / 'kronattn_mm' / '.mim' / 'tools').unlink()
    assert '.mim/tools is missing' in ready.why_incomplete()


def test_interpreter_that_does_not_run(ready):
    ready.python.unlink()
    ready.python.write_text('#!/bin/sh\nexit 1\n')
    ready.python.chmod(0o755)
    assert 'does not run' in ready.why_incomplete()


def test_another_python_version(ready):
    stamp = json.loads(ready.stamp.read_text())
    ready.stamp.write_text(json.dumps(dict(stamp, python='3.9.1')))
    assert 'changed from 3.9.1' in ready.why_incomplete()


def test_moved_checkout(ready, tmp_path):
    stamp = json.loads(ready.stamp.read_text())
    ready.stamp.write_text(json.dumps(dict(stamp, root='/elsewhere')))
    assert 'another folder' in ready.why_incomplete()


def test_packages_the_user_adds_do_no_harm(ready):
    (ready.site_packages() / 'ipython-9.0.dist-info').mkdir()
    assert ready.why_incomplete() is None


def test_python_version_is_that_of_the_environment(ready, checkout):
    assert ready.python_version() == sys.version.split()[0]
    assert Environment(checkout / 'nowhere').python_version() is None


def test_distribution_names_are_normalised():
    found = read_distributions(
        [
            'onedl_mmcv-2.3.6.dist-info',
            'PyYAML-6.0.4.dist-info',
            'cv2',
            'torch-2.13.0+cpu.dist-info',
        ]
    )
    assert found == {'onedl-mmcv': '2.3.6', 'pyyaml': '6.0.4', 'torch': '2.13.0+cpu'}


class TestLocalBuilds:
    constraints = 'torch===2.13.0\ntorchvision===0.28.0\nnumpy==2.2.6\n'

    def test_same_local_build_is_kept(self):
        changed = constraints_beside(
            self.constraints, {'torch': '2.13.0+cpu', 'torchvision': '0.28.0+cpu'}
        )
        assert changed == 'torch===2.13.0+cpu\ntorchvision===0.28.0+cpu\nnumpy==2.2.6\n'

    @pytest.mark.parametrize(
        'installed',
        [
            {},
            {'torch': '2.13.0', 'torchvision': '0.28.0'},
            {'torch': '2.13.0+cpu', 'torchvision': '0.28.0'},
            {'torch': '2.13.0+cpu', 'torchvision': '0.28.0+cu130'},
            {'torch': '2.14.0+cpu', 'torchvision': '0.29.0+cpu'},
        ],
    )
    def test_anything_else_is_replaced(self, installed):
        assert constraints_beside(self.constraints, installed) == self.constraints


class TestConstraintsFile:
    """The real file, which everybody's environment is made from."""

    text = (ROOT / 'requirements' / 'constraints.txt').read_text()

    @pytest.mark.parametrize(
        ('name', 'version'),
        [
            ('torch', '2.13.0'),
            ('torchvision', '0.28.0'),
            ('onedl-mmcv', '2.3.6'),
            ('onedl-mmengine', '0.10.12'),
            ('onedl-mmdetection', '3.5.1'),
            ('onedl-mmsegmentation', '1.4.2'),
            ('onedl-mmpretrain', '1.3.6'),
        ],
    )
    def test_exact_pins(self, name, version):
        assert read_pin(self.text, name) == version

    def test_missing_pin_is_an_error(self):
        with pytest.raises(ValueError, match='no line nothing==='):
            read_pin(self.text, 'nothing')

    def test_every_requirement_is_pinned(self):
        pinned = {
            environment.normalise(name)
            for name in re.findall(r'^([\w.-]+)={2,3}', self.text, re.MULTILINE)
        }
        for purpose in STACKS['forks'].purposes:
            lines = (ROOT / 'requirements' / f'{purpose}.txt').read_text().splitlines()
            wanted = {line.strip() for line in lines if line.strip() and line[0] != '#'}
            assert wanted <= pinned, purpose


class TestOriginals:
    """The second environment, beside the first."""

    def test_folders_lie_side_by_side(self, checkout):
        env = Environment(checkout, STACKS['originals'])
        assert env.folder == checkout / '.venv-originals'
        assert Environment(checkout).folder == checkout / '.venv'

    def test_a_later_pin_takes_the_place_of_an_earlier_one(self):
        text = overridden('# head\nA_b==1; python_version < "3.11"\na-b==2\nc==3\n', 'a.b===4\n')
        assert text == '# head\nc==3\na.b===4\n'

    def test_versions_are_those_of_the_originals(self, checkout):
        env = Environment(checkout, STACKS['originals'])
        assert env.constraints().splitlines()[-2:] == ['mmcv===2.1.0', 'setuptools==81.0.0']
        assert 'setuptools==84' not in env.constraints()
        assert 'setuptools==84' in Environment(checkout).constraints()

    def test_the_real_files_pin_all_that_is_wanted(self):
        env = Environment(ROOT, STACKS['originals'])
        for name, version in (
            ('mmengine', '0.10.7'),
            ('mmcv', '2.1.0'),
            ('mmdet', '3.3.0'),
            ('mmsegmentation', '1.2.2'),
            ('mmpretrain', '1.2.0'),
            ('torch', '2.13.0'),
        ):
            assert read_pin(env.constraints(), name) == version
        names = re.findall(r'^([\w.-]+)={2,3}', env.constraints(), re.MULTILINE)
        pinned = set(map(environment.normalise, names))
        lines = (ROOT / 'requirements' / 'originals.txt').read_text().splitlines()
        assert {re.split('[<>=]', line)[0] for line in lines if line[0] != '#'} <= pinned

    def test_each_environment_notices_its_own_changes_alone(self, ready, checkout):
        before = Environment(checkout, STACKS['originals']).fingerprint()
        (checkout / 'requirements' / 'constraints-originals.txt').write_text('mmcv===2.1.1\n')
        assert Environment(checkout, STACKS['originals']).fingerprint() != before
        assert ready.why_incomplete() is None
