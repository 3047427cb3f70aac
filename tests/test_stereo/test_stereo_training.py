"""Two iterations through mmengine's runner, and through the stock scripts."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from stereo_pairs import write_kitti, write_scene_flow

from kronattn_mm import load_attention, save_attention

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / 'configs' / 'efficient_attention' / 'stereo'
SMALL = """
_base_ = '{base}'

model = dict(
    backbone=dict(base_channels=4, out_channels=4, blocks=(1, 1, 1, 1), windows=(4, 2)),
    neck=dict(in_channels=8, channels=4, planes=4),
    head=dict(channels=4, max_disparity=16))
train_dataloader = dict(batch_size=2, dataset=dict(data_root='{data}'))
val_dataloader = dict(dataset=dict(data_root='{data}'))
test_dataloader = val_dataloader
val_evaluator = dict(max_disparity=16)
test_evaluator = val_evaluator
train_cfg = dict(max_epochs=1, val_interval=1)
work_dir = '{work_dir}'
"""


class WeightsAtTheStart(Hook):
    """Keeps the weights that a training begins with."""

    def before_train(self, runner: Runner) -> None:
        self.weights = copy.deepcopy(runner.model.state_dict())


@pytest.fixture
def config(tmp_path) -> Path:
    """The small config with attention, made smaller still, on made pairs of 128 x 64 pixels."""
    write_scene_flow(tmp_path / 'data', pairs=4, size=(64, 128))
    path = tmp_path / 'config.py'
    base = CONFIGS / 'small' / 'psmnet_ea-out2_composed-pairs.py'
    path.write_text(SMALL.format(base=base, data=tmp_path / 'data', work_dir=tmp_path / 'work_dir'))
    return path


def test_a_run_with_frozen_trunk_writes_metrics_and_pictures_and_gives_its_layer_away(
    config, tmp_path
):
    settings = Config.fromfile(config)
    settings.custom_hooks.append(dict(type='kronattn_mm.FreezeHook', train=['attention']))
    settings.experiment_name = 'stereo'
    runner = Runner.from_cfg(settings)
    start = WeightsAtTheStart()
    runner.register_hook(start)
    runner.train()
    before, after = start.weights, runner.model.state_dict()
    changed = [key for key, value in before.items() if not torch.equal(value, after[key])]
    assert changed and all(key.startswith('neck.attention.out2.') for key in changed)
    assert after['neck.attention.out2.reprojection.weight'].abs().max() > 0

    folder = next((tmp_path / 'work_dir').glob('*/vis_data'))
    lines = [json.loads(line) for line in (folder / 'scalars.json').read_text().splitlines()]
    (metrics,) = [line for line in lines if 'disparity/EPE' in line]
    assert 0 < metrics['disparity/EPE'] < 16 and 'disparity/EPE_visible' in metrics
    assert len(list((folder / 'vis_image').glob('val_*.png'))) == 4
    assert list((tmp_path / 'work_dir').glob('best_disparity_EPE_epoch_1.pth'))

    small = tmp_path / 'attention.pth'
    save_attention(runner.model, small)
    other = Runner.from_cfg(Config(dict(settings, experiment_name='other'))).model
    load_attention(other, small)
    key = 'neck.attention.out2.reprojection.weight'
    assert torch.equal(other.state_dict()[key], after[key])


@pytest.mark.slow
def test_stock_scripts_train_resume_and_test(config, tmp_path):
    def run(*words) -> None:
        subprocess.run(
            [sys.executable, *map(str, words)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
        )

    run('tools/train.py', config)
    run('tools/train.py', config, '--resume', '--cfg-options', 'train_cfg.max_epochs=2')
    checkpoint = tmp_path / 'work_dir' / 'epoch_2.pth'
    run('tools/test.py', config, checkpoint, '--show-dir', tmp_path / 'pictures')
    assert len(list((tmp_path / 'pictures').rglob('*.png'))) == 4


@pytest.mark.slow
def test_a_dry_run_of_the_paper_config_on_kitti(tmp_path):
    """The full network, on small pictures of another layout."""
    write_kitti(tmp_path / 'kitti', pairs=6, size=(64, 128))
    loader = (
        'dict(num_workers=0, persistent_workers=False, '
        "dataset=dict(_delete_=True, type='kronattn_mm.KITTIStereoDataset', "
        f"data_root='{tmp_path / 'kitti'}', pipeline={{}}))"
    )
    load = "[dict(type='kronattn_mm.LoadStereoPair'), dict(type='kronattn_mm.LoadDisparity'), {}]"
    pack = "dict(type='kronattn_mm.PackStereoInputs')"
    crop = "dict(type='kronattn_mm.RandomCropPair', crop_size=(32, 64)), "
    path = tmp_path / 'config.py'
    path.write_text(
        f"_base_ = '{CONFIGS / 'psmnet_ea-out2_8xb3-100e_sceneflow.py'}'\n"
        f'train_dataloader = {loader.format(load.format(crop + pack))}\n'
        f'val_dataloader = {loader.format(load.format(pack))}\n'
        'test_dataloader = val_dataloader\n'
        f"work_dir = '{tmp_path / 'work_dir'}'\n"
    )
    done = subprocess.run(
        [sys.executable, 'tools/train.py', str(path), '--dry-run'],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert 'neck.out2' in done.stdout and 'everything works' in done.stdout
