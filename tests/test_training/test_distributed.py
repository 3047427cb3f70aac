"""Two processes on the CPU, through tools/dist_train.sh."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip('mmdet')

ROOT = Path(__file__).resolve().parents[2]
DUMP_HOOK = """
import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class DumpRank(Hook):
    def before_train(self, runner):
        self.seen = []

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.seen += [sample.img_path for sample in data_batch['data_samples']]

    def after_train(self, runner):
        torch.save(dict(kind=type(runner.model).__name__, seen=self.seen,
                        state=runner.model.module.state_dict()),
                   f'{runner.work_dir}/rank{get_rank()}.pth')
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return listener.getsockname()[1]


@pytest.mark.slow
def test_two_processes_stay_equal(small_config: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / 'dump_rank.py').write_text(DUMP_HOOK, encoding='utf-8')
    path = small_config("""
train_cfg = dict(max_epochs=1)
custom_imports = dict(imports=['kronattn_mm', 'dump_rank'], allow_failed_imports=False)
custom_hooks = [dict(type='kronattn_mm.EpochSeed'), dict(type='mmengine.DumpRank')]
""")
    environment = dict(
        os.environ,
        OMP_NUM_THREADS='1',
        PYTHONPATH=str(tmp_path),
        PORT=str(free_port()),
        PYTHON=sys.executable,
    )
    done = subprocess.run(
        ['bash', ROOT / 'tools' / 'dist_train.sh', path, '2', '--work-dir', tmp_path / 'run'],
        env=environment,
        text=True,
        capture_output=True,
    )
    # Parameters that took no part in the loss would stop DistributedDataParallel in the second
    # iteration.
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = (
        torch.load(tmp_path / 'run' / f'rank{rank}.pth', weights_only=False) for rank in (0, 1)
    )
    assert first['kind'] == second['kind'] == 'MMDistributedDataParallel'
    assert len(first['seen']) == len(second['seen']) == 8
    assert not set(first['seen']) & set(second['seen'])
    assert first['state'].keys() == second['state'].keys()
    for name, value in first['state'].items():
        if 'running_' in name or 'num_batches' in name:
            continue  # batch norms see different pictures; the checkpoint holds rank 0's
        assert torch.equal(value, second['state'][name]), name
    layer = 'neck.attention.fpn1.reprojection.weight'
    assert first['state'][layer].abs().sum() > 0
    saved = torch.load(tmp_path / 'run' / 'epoch_1.pth', weights_only=False)['state_dict']
    assert torch.equal(saved[layer], first['state'][layer])
