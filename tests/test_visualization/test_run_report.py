"""The report of a run: what is in the page, for whole runs, broken ones and folders of none."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from PIL import Image

pytest.importorskip('mmdet')

from kronattn_mm.cli import report as command
from kronattn_mm.visualization.run_report import ReportError, differences, read_run, write_report

ROOT = Path(__file__).resolve().parents[2]
# As written: a config of a library, with attention and a shorter run.
SOURCE = """
_base_ = 'mmdet::retinanet/retinanet_r18_fpn_1x_coco.py'
model = dict(neck=dict(
    type='kronattn_mm.Plugged', base='mmdet.FPN',
    insert=[dict(at='fpn1-2', layer=dict(type='kronattn_mm.EfficientAttention2d'))]))
train_cfg = dict(max_epochs=3)
optim_wrapper = dict(optimizer=dict(lr=0.005))
"""
LOG = """2026/01/01 00:00:00 - mmengine - INFO -
------------------------------------------------------------
System environment:
    Python: 3.11.0 (main)
    CUDA available: False
    PyTorch: 2.9.0
    PyTorch compiling details: PyTorch built with:
  - GCC 13

Runtime environment:
    seed: 7
------------------------------------------------------------
2026/01/01 00:00:01 - mmengine - INFO - Config:
    Python: not this one
the last line
"""


class Text(HTMLParser):
    """The words of a page, and its tags."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.words, self.tags = '', []
        self.feed(path.read_text(encoding='utf-8'))

    def handle_data(self, data: str) -> None:
        self.words += data

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.tags.append((tag, dict(attributes)))


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    """What a run of three epochs of four steps leaves."""
    from mmengine.config import Config

    source = tmp_path / 'written.py'
    source.write_text(SOURCE, encoding='utf-8')
    folder = tmp_path / 'work'
    images = folder / '20260101_000000' / 'vis_data' / 'vis_image'
    images.mkdir(parents=True)
    Config.fromfile(str(source)).dump(str(folder / 'written.py'))
    (folder / '20260101_000000' / '20260101_000000.log').write_text(LOG, encoding='utf-8')
    records = []
    for step in range(1, 13):
        epoch = (step + 3) // 4
        records.append(
            dict(
                loss=4.0 / step,
                loss_cls=3.0 / step,
                loss_bbox=1.0 / step,
                lr=0.005,
                time=0.5,
                epoch=epoch,
                iter=step,
                step=step,
            )
        )
        if step % 4 == 0:
            records.append(
                {
                    'coco/bbox_mAP': (0.1, 0.3, 0.2)[epoch - 1],
                    'gate/saturated': 0.1 * epoch,
                    'time': 0.1,
                    'step': epoch,
                }
            )
    (images.parent / 'scalars.json').write_text('\n'.join(map(json.dumps, records)))
    for name in ('val_0_4', 'val_0_12', 'val_1_12', 'attention_neck.fpn1_0_3'):
        Image.new('RGB', (1600, 80), 'teal').save(images / f'{name}.png')
    torch.save(
        dict(state_dict={'backbone.layer1.0.conv1.attention.lambda_': torch.ones(4) / 9}),
        folder / 'epoch_3.pth',
    )
    return folder


def test_everything_that_a_run_left(work_dir: Path, tmp_path: Path) -> None:
    write_report(work_dir, tmp_path / 'page.html', tmp_path / 'written.py', (96, 128))
    page = Text(tmp_path / 'page.html')
    for text in (
        'written: RetinaNet',
        '3 of 3 epochs are done',
        'box AP',
        '0.20',
        '0.33',
        'box AP was largest, 0.30, after epoch 2',
        '6 s',
        '2.9.0',
        'neck.fpn1',
        'EfficientAttention2d',
        '2 inserted, ',
        'MACC',
        'Lambda and gates',
        'epoch_3.pth',
        'Derived from mmdet::retinanet/retinanet_r18_fpn_1x_coco.py',
        'train_cfg.max_epochs',
        'optim_wrapper.optimizer.lr',
        'model.neck.insert.0.at',
    ):
        assert text in page.words, text
    assert 'not this one' not in page.words and 'val_0_4' not in page.words
    pictures = [attributes for tag, attributes in page.tags if tag == 'img']
    # Loss, metrics, rate; the last of two pictures; one map; gates and lambda.
    assert len(pictures) == 3 + 2 + 1 + 2
    assert all(one['alt'] and one['src'].startswith('data:image/png;base64,') for one in pictures)
    text = (tmp_path / 'page.html').read_text(encoding='utf-8')
    assert not re.search(r'(?:src|href)="(?!data:)|url\(|@import|<script', text)
    assert 'prefers-color-scheme: dark' in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ['page.html', 'work', 'written.py']


def test_broken_runs(work_dir: Path, tmp_path: Path) -> None:
    page = tmp_path / 'page.html'
    (scalars,) = work_dir.glob('*/vis_data/scalars.json')
    lines = scalars.read_text().splitlines()
    (work_dir / 'epoch_3.pth').unlink()
    # Killed in the second epoch, in the middle of a line, after its loss was lost.
    scalars.write_text('\n'.join([*lines[:5], '{"loss": NaN, "epoch": 2, "step": 6}', '{"lo']))
    write_report(work_dir, page, tmp_path / 'written.py', (96, 128))
    text = Text(page).words
    for part in (
        '1 of 3 epochs',
        'has not finished, or it was stopped',
        'not a number from step 6 on',
        'It left no checkpoint',
        'the last line',
    ):
        assert part in text, part
    scalars.unlink()
    (work_dir / 'written.py').write_text('model = dict(type="Nothing")\n')
    write_report(work_dir, page)
    text = Text(page).words
    assert 'left no training scalars' in text and 'not known: ' in text
    (work_dir / 'written.py').write_text('model = dict(\n')
    write_report(work_dir, page)
    assert 'Its config written.py cannot be read' in Text(page).words
    (work_dir / 'written.py').unlink()
    (work_dir / 'epoch_1.pth').write_bytes(b'half a file')
    write_report(work_dir, page)
    assert 'It left no config' in Text(page).words


def test_iterations_and_percentages(work_dir: Path, tmp_path: Path) -> None:
    (scalars,) = work_dir.glob('*/vis_data/scalars.json')
    records = [dict(loss=1.0 / step, step=step, iter=step, time=0.1) for step in range(10, 50, 10)]
    records.append(dict(mIoU=41.5, aAcc=80.25, step=40))
    scalars.write_text('\n'.join(map(json.dumps, records)))
    (work_dir / 'written.py').write_text(
        "train_cfg = dict(type='IterBasedTrainLoop', max_iters=80, val_interval=40)\n"
    )
    (work_dir / 'epoch_3.pth').rename(work_dir / 'iter_40.pth')
    run = write_report(work_dir, tmp_path / 'page.html')
    assert (run.done, run.length, run.by_epoch) == (40, 80, False)
    text = Text(tmp_path / 'page.html').words
    assert '40 of 80 iterations' in text and 'mean IoU, %' in text and '41.50' in text


def test_differences() -> None:
    base = dict(model=dict(a=1, list=[dict(type='x'), dict(type='y')], gone=2), helper=3)
    here = dict(model=dict(a=1, list=[dict(type='x'), dict(type='z')], new=(4,)), helper=5)
    assert differences(base, here) == [
        ('model.list.1.type', "'y'", "'z'"),
        ('model.gone', '2', '-'),
        ('model.new', '-', '[4]'),
    ]
    assert differences(base, base) == []


@pytest.mark.parametrize(
    'make, message',
    [
        (lambda folder: folder / 'absent', 'is not a folder'),
        (lambda folder: folder, 'is not the work folder of a run'),
    ],
)
def test_folders_of_no_run(make: Callable, message: str, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=message):
        read_run(make(tmp_path))


def test_as_a_command(work_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (work_dir / 'written.py').write_text('train_cfg = dict(max_epochs=3)\n')
    assert command.main([str(work_dir), '--shape', '96', '128', '--pictures', '1']) == 0
    assert '3 of 3 epochs, 1 checkpoints; wrote' in capsys.readouterr().out
    text = Text(work_dir / 'report.html').words
    assert 'Its base is not known' in text and 'val_1_12' not in text
    with pytest.raises(SystemExit) as stop:
        command.main([str(tmp_path)])
    assert stop.value.code == 2
    assert re.search(r'did you mean .*work\?', capsys.readouterr().err)


@pytest.mark.slow
def test_of_a_segmenter(shared: Path, tmp_path: Path) -> None:
    pytest.importorskip('mmseg')
    config = (
        ROOT
        / 'configs'
        / 'kronecker_attention'
        / 'segmentation'
        / 'deeplabv2_mobilenet-v2-d16_kao-kv_120_camvid-161x161.py'
    )
    environment = dict(
        os.environ,
        OMP_NUM_THREADS='1',
        PYTHONPATH=str(ROOT),
        KRONATTN_CAMVID_DATA=str(shared / 'data' / 'seg_mini'),
    )
    subprocess.run(
        [
            sys.executable,
            ROOT / 'tools' / 'train.py',
            config,
            '--work-dir',
            tmp_path / 'run',
            '--cfg-options',
            'train_cfg.max_iters=12',
            'train_cfg.val_interval=6',
            'param_scheduler.1.end=12',
            'default_hooks.logger.interval=2',
            'val_dataloader.num_batch_per_epoch=4',
            'model.backbone.init_cfg.type=Pretrained',
            'model.backbone.init_cfg.checkpoint='
            f'{shared / "weights" / "deeplab_mobilenet_v2_voc_backbone.pth"}',
        ],
        check=True,
        env=environment,
        capture_output=True,
    )
    write_report(tmp_path / 'run', tmp_path / 'page.html')
    page = Text(tmp_path / 'page.html')
    assert '12 of 12 iterations' in page.words and 'mean IoU, %' in page.words
    assert 'Derived from' in page.words
    assert sum(tag == 'img' for tag, _ in page.tags) >= 4
