"""docs/datasets.md: its commands run as they stand, in a folder that has the data it describes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from documentation import DOCS, ROOT, blocks
from made_sets import draw, draw_coco, draw_voc

PAGE = DOCS / 'datasets.md'
CONFIGS = {
    'coco.pth': 'efficient_attention/mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco.py',
    'voc.pth': 'shift_and_balance/ssd/ssd_mobilenetv2-x0.35_1xb32-200e_voc0712.py',
    'bccd.pth': 'kronecker_attention/small/ssdlite_kanet-kv_bccd.py',
    'segmenter.pth': (
        'kronecker_attention/segmentation/deeplabv2_mobilenet-v2-d16_kao-kv_120_voc-161x161.py'
    ),
    'cifar.pth': 'kronecker_attention/small/kanet-kv_cifar10.py',
}
# What test.py must have printed.
FIGURES = {
    'coco.pth': ('coco/segm_mAP',),
    'voc.pth': ('pascal_voc/mAP', 'pascal_voc_area/mAP'),
    'bccd.pth': ('pascal_voc/mAP',),
    'segmenter.pth': ('aAcc', 'mIoU'),
    'cifar.pth': ('accuracy/top1',),
}


def page_commands() -> list[str]:
    text = '\n'.join(blocks(PAGE, '')).replace('\\\n', ' ')
    lines = (' '.join(line.split()) for line in text.splitlines())
    return [line for line in lines if re.match(r'([A-Z_]+=\S+ )?(python|kronattn) ', line)]


def test_the_page_has_commands_and_says_what_downloads():
    found = page_commands()
    assert len(found) > 12
    for line in found:
        fetches = 'prepare_' in line and '--dry-run' not in line and '--check' not in line
        assert fetches == ('# downloads' in line), line


@pytest.fixture(scope='module')
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip('mmseg')
    pytest.importorskip('mmpretrain')
    import torch
    from mmdet.datasets import CocoDataset

    from kronattn_mm.cost.config import load_model

    folder = tmp_path_factory.mktemp('desk')
    for name in ('tools', 'configs'):
        (folder / name).symlink_to(ROOT / name)
    data = folder / 'data'
    draw_coco(data / 'coco', dict(train2017=2, val2017=1), CocoDataset.METAINFO['classes'])
    voc = data / 'VOCdevkit'
    draw_voc(voc / 'VOC2007', {'Main/trainval': 2, 'Main/test': 3}, ['cat', 'bus'], seed=1)
    more = {'Main/trainval': 2, 'Segmentation/train': 2, 'Segmentation/val': 3}
    draw_voc(voc / 'VOC2012', more, ['cat', 'bus'], seed=2)
    lists = {'Main/trainval': 2, 'Main/test': 3}
    draw_voc(data / 'bccd' / 'VOC2007', lists, ['RBC', 'WBC', 'Platelets'], seed=3)
    random, classes = np.random.default_rng(4), 'airplane automobile bird cat deer dog frog horse'
    for split in ('train', 'test'):
        for name in [*classes.split(), 'ship', 'truck']:
            draw(data / 'cifar10' / split / name / '0.png', random, (32, 32))
    (folder / 'work_dirs').mkdir()
    for name, config in CONFIGS.items():
        model, _ = load_model(ROOT / 'configs' / config)
        state = model.state_dict()
        if name == 'coco.pth':  # else no score reaches the threshold, and nothing is evaluated
            state['roi_head.bbox_head.fc_cls.bias'][0] += 5
        torch.save(dict(state_dict=state, meta={}), folder / 'work_dirs' / name)
    (folder / 'bin').mkdir()
    program = folder / 'bin' / 'kronattn'
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kronattn_mm.cli.command "$@"\n')
    program.chmod(0o755)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize('line', page_commands())
def test_every_command_of_the_page_works(line: str, desk: Path):
    command, downloads, _ = line.partition('# downloads')
    if downloads:  # tests/test_datasets/test_prepare.py has a server for these
        command += ' --dry-run'
    paths = [str(desk / 'bin'), str(Path(sys.executable).parent), os.environ['PATH']]
    done = subprocess.run(
        ['bash', '-e', '-c', command],
        cwd=desk,
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=dict(
            os.environ, PATH=os.pathsep.join(paths), PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1'
        ),
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-3000:]
    for name, figures in FIGURES.items():
        if f'work_dirs/{name}' in command:
            assert not [figure for figure in figures if f'{figure}: ' not in output], output[-1500:]
    if command.startswith('kronattn check-data'):
        assert re.search('^0 errors, ', output, re.M) and 'CocoDataset' in output
