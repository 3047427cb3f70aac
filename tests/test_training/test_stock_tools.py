"""mmdet's own train.py and test.py, as programs, on our configs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

mmdet = pytest.importorskip('mmdet')

ROOT = Path(__file__).resolve().parents[2]
STOCK = Path(mmdet.__file__).parent / '.mim' / 'tools'
METRICS = ('coco/bbox_mAP', 'coco/segm_mAP')


def run(script: Path, *arguments: str | Path) -> subprocess.CompletedProcess:
    """Run a tool as a program of its own; fail with its last words if it does."""
    # One thread: on a busy machine threads wait for each other longer than they compute.
    environment = dict(
        os.environ,
        OMP_NUM_THREADS='1',
        PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')]),
    )
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        text=True,
        capture_output=True,
        env=environment,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


def logged(work_dir: Path) -> list[dict]:
    """Everything the run wrote to its scalars file, in order."""
    file = max(work_dir.glob('*/vis_data/scalars.json'))
    return [json.loads(line) for line in file.read_text(encoding='utf-8').splitlines()]


def last_metrics(work_dir: Path, names: Sequence[str] = METRICS) -> dict[str, float]:
    line = next(line for line in reversed(logged(work_dir)) if names[0] in line)
    return {name: line[name] for name in names}


def metrics_of_test(work_dir: Path, names: Sequence[str] = METRICS) -> dict[str, float]:
    file = next(path for path in sorted(work_dir.glob('*/*.json')))
    content = json.loads(file.read_text(encoding='utf-8'))
    return {name: content[name] for name in names}


@pytest.mark.slow
def test_train_and_test_agree_on_a_made_set(
    small_config: Callable[..., Path], tmp_path: Path
) -> None:
    config = small_config('train_cfg = dict(max_epochs=8, val_interval=8)\n')
    run(STOCK / 'train.py', config, '--work-dir', tmp_path / 'train')
    losses = [line['loss'] for line in logged(tmp_path / 'train') if 'loss' in line]
    assert losses[-1] < losses[0] / 2
    trained = last_metrics(tmp_path / 'train')
    assert all(0 < value <= 1 for value in trained.values()), trained

    checkpoint = tmp_path / 'train' / 'epoch_8.pth'
    state = torch.load(checkpoint, map_location='cpu', weights_only=False)['state_dict']
    attention = [name for name in state if '.attention.' in name]
    assert len(attention) == 7 * 8
    assert all(state[name].abs().sum() > 0 for name in attention if 'reprojection' in name)

    run(STOCK / 'test.py', config, checkpoint, '--work-dir', tmp_path / 'test')
    assert metrics_of_test(tmp_path / 'test') == trained
    # Ours runs the same script; and a few validation pictures are there, none of the test.
    run(ROOT / 'tools' / 'test.py', config, checkpoint, '--work-dir', tmp_path / 'test_ours')
    assert metrics_of_test(tmp_path / 'test_ours') == trained
    assert len(list((tmp_path / 'train').glob('*/vis_data/vis_image/val_*.png'))) == 4
    assert not list(tmp_path.glob('test*/**/*.png'))


@pytest.mark.slow
def test_real_photographs(shared: Path, small_config: Callable[..., Path], tmp_path: Path) -> None:
    folder = shared / 'data' / 'coco_mini'
    annotations = {
        split: next((folder / 'annotations').glob(f'*{split}*.json')) for split in ('train', 'val')
    }
    classes = [
        category['name']
        for category in json.loads(annotations['train'].read_text(encoding='utf-8'))['categories']
    ]
    config = small_config(f"""
classes = {classes!r}
resize['scale'] = (256, 256)
data = dict(data_root='{folder}/', metainfo=dict(classes=classes))
train_dataloader['dataset'].update(
    ann_file='{annotations['train']}', data_prefix=dict(img='train/'),
    indices=24, **data)
val_dataloader['dataset'].update(
    ann_file='{annotations['val']}', data_prefix=dict(img='val/'), **data)
val_evaluator['ann_file'] = '{annotations['val']}'
model['roi_head']['bbox_head']['num_classes'] = len(classes)
model['roi_head']['mask_head']['num_classes'] = len(classes)
train_cfg = dict(max_epochs=1)
""")
    run(STOCK / 'train.py', config, '--work-dir', tmp_path / 'train')
    assert all(
        torch.isfinite(torch.tensor(line['loss']))
        for line in logged(tmp_path / 'train')
        if 'loss' in line
    )
    metrics = last_metrics(tmp_path / 'train')
    assert all(0 <= value <= 1 for value in metrics.values()), metrics
    assert (tmp_path / 'train' / 'epoch_1.pth').is_file()
