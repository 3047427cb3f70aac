"""``tools/train.py CONFIG --dry-run``: says whether a long run will get through, leaves nothing."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip('mmdet')

from mmengine.config import Config

from kronattn_mm.engine import dry_run as dry_run_module

ROOT = Path(__file__).resolve().parents[2]


def dry_run(
    folder: Path, config: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess:
    """Run it in an empty folder with a temporary folder of its own, and see both left empty."""
    here, temporary = folder / 'here', folder / 'temporary'
    here.mkdir()
    temporary.mkdir()
    variables = dict(
        os.environ,
        OMP_NUM_THREADS='1',
        PYTHONPATH=str(ROOT),
        TMPDIR=str(temporary),
        PYTHONDONTWRITEBYTECODE='1',
        **environment,
    )
    done = subprocess.run(
        [sys.executable, ROOT / 'tools' / 'train.py', config, '--dry-run', *arguments],
        cwd=here,
        env=variables,
        text=True,
        capture_output=True,
    )
    left = [path for path in here.iterdir()]
    left += [path for path in temporary.iterdir() if 'dry_run' in path.name]
    assert not left, left
    return done


@pytest.mark.parametrize(
    'train, validations',
    [
        (dict(max_epochs=12, val_interval=5), 3),
        (dict(max_epochs=12), 12),
        (dict(max_iters=120, val_interval=40), 3),
        (dict(max_epochs=12, val_begin=10), 3),
    ],
)
def test_number_of_validations(train: dict, validations: int) -> None:
    config = Config(dict(train_cfg=train, val_dataloader=dict()))
    assert dry_run_module._validations(config) == validations


def test_how_the_length_of_a_run_is_worked_out() -> None:
    measured = dry_run_module.Measured(
        steps=[9.0, 0.5],
        waits=[1.0, 0.1],
        validation=0.25,
        total_steps=7200,
        validations=2,
        validation_batches=120,
        memory='peak memory: 1 GiB',
        status='nothing is inserted',
    )
    text = dry_run_module.report(measured, 30.0)
    assert 'one training step: 0.50 s, of which 0.10 s waiting for data' in text
    assert 'the whole schedule: about 1 h 01 min on one such process' in text
    assert '= 7,200 steps x 0.50 s + 2 validations x 120 batches x 0.25 s' in text


@pytest.mark.slow
def test_of_a_detector(small_config: Callable[..., Path], tmp_path: Path) -> None:
    done = dry_run(
        tmp_path,
        small_config(
            "custom_hooks = [dict(type='EMAHook', begin_epoch=2)]\n"
            'train_cfg = dict(max_epochs=12, val_interval=5)\n'
        ),
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    text = done.stdout
    for part in (
        '2 training batches, validation, checkpoint ... ok',
        'resumed from it ... ok',
        'test of it ... ok',
        '7 inserted, ',
        'backbone.res3',
        'peak memory: ',
        'dry run: everything works',
    ):
        assert part in text, text
    # Sixteen pictures, two at a time, twelve epochs; after epochs 5, 10 and 12, four pictures.
    found = re.search(
        r'about (\d+) (s|min).*\n *= 96 steps x ([\d.]+) s \+ 3 validations x '
        r'4 batches x ([\d.]+) s',
        text,
    )
    assert found, text
    expected = 96 * float(found[3]) + 12 * float(found[4])
    assert int(found[1]) * (60 if found[2] == 'min' else 1) == pytest.approx(expected, rel=0.6)


@pytest.mark.slow
def test_failures_name_the_part_and_the_reason(
    small_config: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / 'a').mkdir()
    done = dry_run(tmp_path / 'a', small_config("val_evaluator['metric'] = ['bbox', 'nonsense']\n"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        'train.py: error: dry run failed in: 2 training batches, validation, checkpoint: '
    )
    assert 'nonsense' in done.stderr.splitlines()[-1]
    (tmp_path / 'b').mkdir()
    done = dry_run(tmp_path / 'b', small_config(), '--resume')
    assert done.returncode == 1 and 'leave out --resume' in done.stderr


@pytest.mark.slow
def test_of_a_segmenter_by_iterations(shared: Path, tmp_path: Path) -> None:
    pytest.importorskip('mmseg')
    weights = shared / 'weights' / 'deeplab_mobilenet_v2_voc_backbone.pth'
    config = (
        ROOT
        / 'configs'
        / 'kronecker_attention'
        / 'segmentation'
        / 'deeplabv2_mobilenet-v2-d16_kao-kv_120_camvid-161x161.py'
    )
    done = dry_run(
        tmp_path,
        config,
        '--cfg-options',
        'model.backbone.init_cfg.type=Pretrained',
        f'model.backbone.init_cfg.checkpoint={weights}',
        KRONATTN_CAMVID_DATA=str(shared / 'data' / 'seg_mini'),
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert '= 120 steps x ' in done.stdout


@pytest.mark.slow
def test_of_a_classifier(shared: Path, tmp_path: Path) -> None:
    pytest.importorskip('mmpretrain')
    data = tmp_path / 'cifar10'
    subprocess.run(
        [
            sys.executable,
            ROOT / 'tools' / 'dataset_tools' / 'unpack_image_archive.py',
            shared / 'data' / 'cls_mini' / 'cifar10_subset.npz',
            data,
        ],
        check=True,
        capture_output=True,
    )
    done = dry_run(
        tmp_path,
        ROOT / 'configs/kronecker_attention/small/kanet-kv_cifar10.py',
        '--cfg-options',
        *(f'{name}_dataloader.dataset.data_root={data}' for name in ('train', 'val', 'test')),
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert 'nothing is inserted' in done.stdout and 'the whole schedule: about' in done.stdout
