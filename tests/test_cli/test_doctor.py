"""What the doctor finds in environments that are broken in known ways."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kronattn_mm import doctor
from kronattn_mm.doctor import BAD, NOTE, OK

ROOT = Path(__file__).resolve().parents[2]
FORKS = {fork: module for module, fork, _ in doctor.STACKS}


def stacks(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], files: set[str]
) -> dict[str, doctor.Finding]:
    """Findings about the stacks where these distributions and modules are there."""
    monkeypatch.setattr(doctor, '_version', versions.get)
    monkeypatch.setattr(
        doctor, '_place', lambda module: Path('site') / module if module in files else None
    )
    return {item.name: item for item in doctor._stacks()}


def test_a_whole_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    found = stacks(monkeypatch, dict.fromkeys(FORKS, '1.0'), set(FORKS.values()))
    assert all(item.level == OK for item in found.values()) and 'stack' not in found


def test_both_stacks_over_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    found = stacks(monkeypatch, {'onedl-mmcv': '2.3', 'mmcv': '2.1'}, {'mmcv'})
    assert found['mmcv'].level == BAD and 'over the same files' in found['mmcv'].value
    assert found['mmcv'].remedy == 'pip uninstall -y onedl-mmcv mmcv && pip install onedl-mmcv'


def test_half_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = stacks(monkeypatch, {'onedl-mmdetection': '3.5'}, {'mmseg'})
    assert found['mmdet'].level == BAD and 'its files are gone' in found['mmdet'].value
    assert found['mmseg'].level == NOTE and 'without a distribution' in found['mmseg'].value
    assert found['mmengine'].value == 'not installed'
    assert found['mmengine'].remedy == 'pip install onedl-mmengine'


def test_mixed_stacks_and_setuptools(monkeypatch: pytest.MonkeyPatch) -> None:
    found = stacks(
        monkeypatch,
        {'onedl-mmengine': '0.10', 'mmdet': '3.3', 'setuptools': '82.0.1'},
        {'mmengine', 'mmdet'},
    )
    assert found['stack'].value == 'forks and originals are mixed'
    assert found['setuptools'].remedy == "pip install 'setuptools<82'"


def test_an_import_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'mmdet').mkdir()
    (tmp_path / 'mmdet' / '__init__.py').write_text(
        "assert False, 'MMCV==2.3 is used but incompatible'\n", encoding='utf-8'
    )
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    found = doctor._import_result('mmdet', doctor._start_import('mmdet'))
    assert found.level == BAD and 'MMCV==2.3 is used but incompatible' in found.value
    (tmp_path / 'mmdet' / '__init__.py').write_text('import terminaltablesque\n')
    found = doctor._import_result('mmdet', doctor._start_import('mmdet'))
    assert "brings what it needs ('terminaltablesque')" in found.remedy


def test_a_layer_without_gradient_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from kronattn_mm import layers

    monkeypatch.setattr(layers.EfficientAttention2d, 'forward', lambda self, x: x)
    found = {item.name: item for item in doctor._layers()}
    item = found['EfficientAttention2d on cpu']
    assert item.level == BAD and 'gets no gradient' in item.value
    assert 'cpu' not in found


@pytest.mark.slow
def test_as_a_program(tmp_path: Path) -> None:
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    done = subprocess.run(
        [sys.executable, '-m', 'kronattn_mm.cli.command', 'doctor', '--json'],
        cwd=tmp_path,
        env=environment,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stdout
    groups = {item['group'] for item in json.loads(done.stdout)}
    assert groups == {'system', 'OpenMMLab', 'packages', 'operators', 'devices', 'layers'}
