"""What a newcomer can do, and in how long: each a program of its own, in the time it may take.

Times are those of the processor, since the machine may be busy: ``wall`` seconds on two cores are
at most twice as many.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip('mmdet')

from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

ROOT = Path(__file__).resolve().parents[2]
KRONATTN = ('-m', 'kronattn_mm')
pytestmark = pytest.mark.slow


def run(folder: Path, wall: float, *command: str | Path) -> str:
    """Run a program to its end within its time; return what it printed."""
    environment = dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=str(ROOT))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 2 * wall, f'{spent:.1f} s on the processor'
    return done.stdout


def test_know_what_my_environment_lacks(tmp_path: Path) -> None:
    assert 'nothing is broken' in run(tmp_path, 5, *KRONATTN, 'doctor')


def test_find_where_attention_can_go_in_my_config(
    small_config: Callable[..., Path], tmp_path: Path
) -> None:
    text = run(tmp_path, 10, *KRONATTN, 'points', small_config())
    assert 'res3' in text and 'fpn1' in text and "type='kronattn_mm.Plugged'" in text


def test_know_the_cost_before_training(small_config: Callable[..., Path], tmp_path: Path) -> None:
    content = json.loads(run(tmp_path, 10, *KRONATTN, 'cost', small_config(), '--json'))
    assert len(content['layers']) == 7 and content['total']['executed']['macc'] > 0


def test_be_sure_that_a_long_run_will_get_through(
    small_config: Callable[..., Path], tmp_path: Path
) -> None:
    text = run(tmp_path, 120, ROOT / 'tools' / 'train.py', small_config(), '--dry-run')
    assert 'the whole schedule: about' in text and 'everything works' in text


def test_train_only_the_new_layers_on_my_checkpoint_and_show_it(
    small_config: Callable[..., Path], tmp_path: Path
) -> None:
    """Three lines in the config, and one page afterwards."""
    plain = Config.fromfile(small_config())
    for part, base in (('backbone', 'mmdet.ResNet'), ('neck', 'mmdet.FPN')):
        settings = {
            key: value for key, value in plain.model[part].items() if key not in ('base', 'insert')
        }
        plain.model[part] = dict(settings, type=base)
    init_default_scope('mmdet')
    state = MODELS.build(plain.model).state_dict()
    torch.save(dict(state_dict=state), tmp_path / 'mine.pth')
    lines = f"""
custom_hooks = [dict(type='kronattn_mm.FreezeHook', train=['attention']),
                dict(type='kronattn_mm.CheckLoadedKeysHook')]
load_from = '{tmp_path / 'mine.pth'}'
"""
    assert len(lines.strip().splitlines()) == 3
    config = small_config(lines + 'train_cfg = dict(max_epochs=1)\n')
    work_dir = tmp_path / 'work'
    text = run(tmp_path, 120, ROOT / 'tools' / 'train.py', config, '--work-dir', work_dir)
    assert f'upstream keys loaded: {len(state)} of {len(state)}' in text
    assert 'trainable 240 k of 11.8 M, 2.0 %' in text
    trained = torch.load(work_dir / 'epoch_1.pth', weights_only=False)['state_dict']
    assert all(torch.equal(value, trained[key]) for key, value in state.items())
    run(tmp_path, 20, *KRONATTN, 'report', work_dir, '--config', config)
    assert 'FreezeHook' in (work_dir / 'report.html').read_text(encoding='utf-8')
