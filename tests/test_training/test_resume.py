"""A run that is interrupted and resumed ends with the very weights of one that ran through."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip('mmdet')

from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.runner import Runner

ROOT = Path(__file__).resolve().parents[2]
NO_VALIDATION = 'train_cfg = dict(max_epochs=2, val_interval=100)\n'


def start(path: Path, work_dir: Path, **changes: object) -> Runner:
    """What train.py does with a config and its options, in this process."""
    config = Config.fromfile(path)
    config.merge_from_dict(changes)
    config.work_dir = str(work_dir)
    config.experiment_name = f'{work_dir.name}_{len(changes)}'
    init_default_scope('mmdet')
    runner = Runner.from_cfg(config)
    torch.use_deterministic_algorithms(True)
    try:
        runner.train()
    finally:
        torch.use_deterministic_algorithms(False)
    return runner


def checkpoint(path: Path) -> dict:
    return torch.load(path, map_location='cpu', weights_only=False)


def assert_equal(first: object, second: object, name: str = '') -> None:
    """Compare nested containers of tensors and numbers bit for bit."""
    assert type(first) is type(second), name
    if isinstance(first, torch.Tensor):
        assert first.dtype == second.dtype and torch.equal(first, second), name
    elif isinstance(first, dict):
        assert first.keys() == second.keys(), name
        for key in first:
            assert_equal(first[key], second[key], f'{name}.{key}')
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second), name
        for index, pair in enumerate(zip(first, second, strict=True)):
            assert_equal(*pair, f'{name}.{index}')
    else:
        assert first == second, name


def test_resumed_run_is_bit_for_bit_the_straight_one(
    small_config: Callable[..., Path], tmp_path: Path
) -> None:
    path = small_config(NO_VALIDATION)
    start(path, tmp_path / 'straight')
    start(path, tmp_path / 'resumed', **{'train_cfg.max_epochs': 1})
    torch.rand(7)  # a new process has other random numbers than the one that was interrupted
    start(path, tmp_path / 'resumed', resume=True)
    straight = checkpoint(tmp_path / 'straight' / 'epoch_2.pth')
    resumed = checkpoint(tmp_path / 'resumed' / 'epoch_2.pth')
    for part in ('state_dict', 'optimizer', 'param_schedulers'):
        assert_equal(straight[part], resumed[part], part)
    assert any('.attention.' in name for name in resumed['state_dict'])


def test_without_the_epoch_seed_it_is_not(
    small_config: Callable[..., Path], tmp_path: Path
) -> None:
    """If this fails, mmengine restores the random state by itself and the hook can go."""
    path = small_config(NO_VALIDATION + "custom_hooks = [dict(type='CheckInvalidLossHook')]\n")
    start(path, tmp_path / 'straight')
    start(path, tmp_path / 'resumed', **{'train_cfg.max_epochs': 1})
    start(path, tmp_path / 'resumed', resume=True)
    straight, resumed = (
        checkpoint(tmp_path / name / 'epoch_2.pth')['state_dict']
        for name in ('straight', 'resumed')
    )
    assert any(not torch.equal(straight[name], resumed[name]) for name in straight)


@pytest.mark.slow
@pytest.mark.parametrize('workers', [0, 2])
def test_resume_in_a_new_process(
    small_config: Callable[..., Path], tmp_path: Path, workers: int
) -> None:
    path = small_config(NO_VALIDATION)
    environment = dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=str(ROOT))

    def train(folder: str, epochs: int, *arguments: str) -> None:
        subprocess.run(
            [
                sys.executable,
                ROOT / 'tools' / 'train.py',
                path,
                '--work-dir',
                tmp_path / folder,
                '--cfg-options',
                f'train_cfg.max_epochs={epochs}',
                f'train_dataloader.num_workers={workers}',
                *arguments,
            ],
            check=True,
            capture_output=True,
            env=environment,
        )

    train('straight', 2)
    train('resumed', 1)
    train('resumed', 2, '--resume')
    assert_equal(
        checkpoint(tmp_path / 'straight' / 'epoch_2.pth')['state_dict'],
        checkpoint(tmp_path / 'resumed' / 'epoch_2.pth')['state_dict'],
    )
