"""Training the inserted layers alone: what is frozen stays bit for bit as it was."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip('mmdet')

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS, init_default_scope
from mmengine.runner import Runner
from torch.nn.modules.batchnorm import _NormBase

from kronattn_mm.engine import FreezeHook
from kronattn_mm.engine.freeze_hook import freeze_except, names_path, trainable_line
from kronattn_mm.plugging import Plugged

ROOT = Path(__file__).resolve().parents[2]
ALSO = 'roi_head.bbox_head.fc_cls'
# A layer with a norm of its own among the others; and paramwise settings, where mmengine would
# write a line for each parameter that it skips.
WITH_NORM = """
model['backbone']['insert'] = [
    dict(at='res3', layer=dict(type='kronattn_mm.EfficientAttention2d')),
    dict(at='res4', layer=dict(type='NonLocal2d', norm_cfg=dict(type='BN')))]
"""
CONFIG = (
    WITH_NORM
    + f"""
train_cfg = dict(max_epochs=1, val_interval=100)
custom_hooks = [
    dict(type='kronattn_mm.EpochSeed'),
    dict(type='kronattn_mm.FreezeHook', train=['attention'], also=['{ALSO}'])]
optim_wrapper = dict(optimizer=dict(lr=1e-2), paramwise_cfg=dict(norm_decay_mult=0.))
"""
)


@OPTIM_WRAPPERS.register_module()
class BFloat16OnCPU(OptimWrapper):
    """mmengine's AmpOptimWrapper refuses to work without a GPU."""

    @contextlib.contextmanager
    def optim_context(self, model: torch.nn.Module) -> Iterator[None]:
        with super().optim_context(model), torch.autocast('cpu', torch.bfloat16):
            yield


class Watch(Hook):
    """Keep the weights that training starts from, and look at the norms in the last step."""

    priority = 'LOWEST'

    def before_train(self, runner: Runner) -> None:
        self.before = {name: value.clone() for name, value in runner.model.state_dict().items()}

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: object = None, outputs: object = None
    ) -> None:
        self.norms = {
            name: module.training
            for name, module in runner.model.named_modules()
            if isinstance(module, _NormBase)
        }


def start(path: Path, work_dir: Path, **changes: object) -> tuple[Runner, Watch]:
    config = Config.fromfile(path)
    config.merge_from_dict(changes)
    config.work_dir = str(work_dir)
    config.experiment_name = f'{work_dir.name}_{len(changes)}'
    init_default_scope('mmdet')
    runner = Runner.from_cfg(config)
    watch = Watch()
    runner.register_hook(watch)
    torch.use_deterministic_algorithms(True)
    try:
        runner.train()
    finally:
        torch.use_deterministic_algorithms(False)
    return runner, watch


def is_trained(name: str) -> bool:
    return '.attention.' in name or name.startswith(ALSO)


def assert_only_trained_changed(before: dict, after: dict) -> None:
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert is_trained(name) or torch.equal(value, after[name]), name
    layer = 'neck.attention.fpn1.reprojection.weight'
    assert not torch.equal(before[layer], after[layer])
    assert not torch.equal(before[f'{ALSO}.weight'], after[f'{ALSO}.weight'])


@pytest.mark.slow
def test_frozen_tensors_are_bit_equal_after_fifty_steps(
    small_config: Callable[..., Path], tmp_path: Path
) -> None:
    path = small_config(CONFIG + 'param_scheduler = []\n')
    runner, watch = start(path, tmp_path / 'run', **{'train_cfg.max_epochs': 7})
    assert runner.iter == 56
    assert_only_trained_changed(watch.before, runner.model.state_dict())
    # Inserted norms learn, all others keep their statistics.
    assert all(training == ('.attention.' in name) for name, training in watch.norms.items())
    assert 'backbone.bn1' in watch.norms and any(watch.norms.values())
    (log,) = (tmp_path / 'run').glob('*/*.log')
    text = log.read_text(encoding='utf-8')
    assert trainable_line(runner.model) in text
    assert text.count('is skipped since its requires_grad') == 0
    # What is optimized is what has a gradient, and nothing else.
    optimized = {
        id(parameter)
        for group in runner.optim_wrapper.optimizer.param_groups
        for parameter in group['params']
    }
    assert optimized == {
        id(parameter) for name, parameter in runner.model.named_parameters() if is_trained(name)
    }


@pytest.mark.slow
def test_resumed_is_the_straight_run_with_ema(
    small_config: Callable[..., Path], tmp_path: Path
) -> None:
    more = """
custom_hooks += [dict(type='EMAHook', momentum=0.1)]
train_cfg = dict(max_epochs=2, val_interval=100)
"""
    path = small_config(CONFIG + more)
    straight, watch = start(path, tmp_path / 'straight')
    start(path, tmp_path / 'resumed', **{'train_cfg.max_epochs': 1})
    torch.rand(7)  # a new process has other random numbers than the one that was interrupted
    resumed, _ = start(path, tmp_path / 'resumed', resume=True)
    first, second = (
        torch.load(tmp_path / name / 'epoch_2.pth', weights_only=False)
        for name in ('straight', 'resumed')
    )
    for part in ('state_dict', 'ema_state_dict'):
        assert first[part].keys() == second[part].keys()
        for name, value in first[part].items():
            assert torch.equal(value, second[part][name]), name
    assert_only_trained_changed(watch.before, first['state_dict'])  # the averages
    assert_only_trained_changed(watch.before, straight.model.state_dict())
    moments = first['optimizer']['state']
    assert len(moments) == sum(is_trained(name) for name, _ in straight.model.named_parameters())


class Regression(BaseModel):
    """A plugged backbone that learns to answer nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Plugged(
            'mmdet.ResNet',
            depth=18,
            base_channels=8,
            out_indices=(3,),
            norm_eval=False,
            insert=[dict(at='res3', layer=dict(type='NonLocal2d', norm_cfg=dict(type='BN')))],
        )

    def forward(self, inputs: list[torch.Tensor], mode: str) -> dict[str, torch.Tensor]:
        return dict(loss=self.backbone(torch.stack(inputs))[0].float().square().mean())


def small_run(work_dir: Path, epochs: int, resume: bool = False) -> tuple[dict, dict]:
    """Return the weights before training and the last checkpoint."""
    torch.manual_seed(0)
    model = Regression()
    data = [dict(inputs=torch.randn(3, 32, 32)) for _ in range(4)]
    watch = Watch()
    Runner(
        model,
        str(work_dir),
        train_cfg=dict(by_epoch=True, max_epochs=epochs),
        resume=resume,
        train_dataloader=dict(
            dataset=data, sampler=dict(type='DefaultSampler', shuffle=False), batch_size=2
        ),
        optim_wrapper=dict(
            type='BFloat16OnCPU',
            optimizer=dict(type='AdamW', lr=1e-2, weight_decay=1e-2),
            paramwise_cfg=dict(norm_decay_mult=0.0),
        ),
        param_scheduler=[dict(type='LinearLR', by_epoch=False, end=3)],
        custom_hooks=[dict(type='EMAHook'), FreezeHook(), watch],
        randomness=dict(seed=0),
        experiment_name=f'{work_dir.name}_{epochs}_{resume}',
    ).train()
    return watch.before, torch.load(work_dir / f'epoch_{epochs}.pth', weights_only=False)


def test_mixed_precision_ema_and_resume(tmp_path: Path) -> None:
    before, straight = small_run(tmp_path / 'straight', 3)
    small_run(tmp_path / 'resumed', 1)
    _, resumed = small_run(tmp_path / 'resumed', 3, resume=True)
    for part in ('state_dict', 'ema_state_dict'):
        assert straight[part].keys() == resumed[part].keys()
        for name, value in straight[part].items():
            assert torch.equal(value, resumed[part][name]), name
    new = [
        name
        for name in before
        if '.attention.' in name and 'running' not in name and 'num_batches' not in name
    ]
    assert len(straight['optimizer']['state']) == len(new)
    (log,) = (tmp_path / 'straight').glob('*/*.log')
    assert 'is skipped since its requires_grad' not in log.read_text(encoding='utf-8')
    for weights in (
        straight['state_dict'],  # the averages
        {name.removeprefix('module.'): value for name, value in straight['ema_state_dict'].items()},
    ):
        changed = {name for name, value in before.items() if not torch.equal(value, weights[name])}
        assert all('.attention.' in name for name in changed)
        assert {
            'backbone.attention.res3.conv_out.bn.weight',
            'backbone.attention.res3.conv_out.bn.running_mean',
        } <= changed


def test_names_are_compared_by_whole_components() -> None:
    assert names_path('attention', 'neck.attention.fpn1.query.weight')
    assert not names_path('attention', 'backbone.layer1.0.gen_attention_block.weight')
    assert names_path('bbox_head.fc_cls', 'roi_head.bbox_head.fc_cls.bias')
    assert not names_path('roi_head.fc_cls', 'roi_head.bbox_head.fc_cls.bias')
    assert names_path('layer*.0', 'backbone.layer3.0.conv1.weight')
    assert not names_path('backbone.*.conv1', 'backbone.layer3.0.conv1.weight')


@pytest.mark.parametrize(
    'word, near',
    [
        ('atention', "'attention'"),
        ('backbone.attention.res3.conv_ot', "'backbone.attention.res3.conv_out'"),
        ('conv_o', "'conv_out'"),
    ],
)
def test_a_name_that_matches_nothing_is_an_error(word: str, near: str) -> None:
    model = Regression()
    with pytest.raises(ValueError, match=f'{word!r} matches no parameter of Regression') as error:
        freeze_except(model, ['backbone', word])
    assert near in str(error.value)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_what_the_model_itself_froze_stays_frozen() -> None:
    model = Regression()
    model.backbone.layer1.requires_grad_(False)
    freeze_except(model, ['layer1', 'attention'])
    assert not any(parameter.requires_grad for parameter in model.backbone.layer1.parameters())
    assert all(parameter.requires_grad for parameter in model.backbone.attention.parameters())
    with pytest.raises(ValueError, match="'layer1' names were frozen by the model itself"):
        freeze_except(model, ['layer1'])


@pytest.mark.parametrize(
    'arguments, error',
    [
        (dict(train='attention'), TypeError),
        (dict(train=[1]), TypeError),
        (dict(train=[]), ValueError),
    ],
)
def test_bad_arguments(arguments: dict, error: type) -> None:
    with pytest.raises(error, match='train'):
        FreezeHook(**arguments)


def test_new_parts_of_replaced_convolutions_are_trained_and_their_weights_are_not() -> None:
    layer = dict(type='kronattn_mm.ShiftBalanceConv2d')
    model = Plugged(
        'mmdet.ResNet', depth=18, base_channels=8, convs=[dict(at='layer4.*.conv2', layer=layer)]
    )
    frozen = freeze_except(model, ['attention'])
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained and all('.conv2.attention.' in name for name in trained)
    assert not model.layer4[0].conv2.weight.requires_grad
    inside = set(model.layer4[0].conv2.modules())
    assert model.layer4[0].bn2 in frozen and not inside & set(frozen)


def test_a_frozen_inserted_norm_stays_in_eval_mode() -> None:
    """Its own switch would set it to train mode at each forward pass."""
    model = Regression().train()
    hook = FreezeHook(train=['backbone.layer4'])
    hook._frozen_norms = freeze_except(model, hook.words)
    hook.before_train_iter(None, 0)
    before = {name: value.clone() for name, value in model.named_buffers()}
    model([torch.randn(3, 32, 32)] * 2, mode='loss')
    changed = {
        name for name, value in model.named_buffers() if not torch.equal(value, before[name])
    }
    assert changed and all('layer4' in name for name in changed)


DUMP_HOOK = """
import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class DumpRank(Hook):
    def before_train(self, runner):
        self.before = {name: value.clone()
                       for name, value in runner.model.module.state_dict().items()}

    def after_train(self, runner):
        torch.save(dict(kind=type(runner.model).__name__, steps=runner.iter, before=self.before,
                        unused=runner.model.find_unused_parameters,
                        state=runner.model.module.state_dict()),
                   f'{runner.work_dir}/rank{get_rank()}.pth')
"""


@pytest.mark.slow
def test_two_processes(small_config: Callable[..., Path], tmp_path: Path) -> None:
    """Without unused parameters, which would stop DistributedDataParallel in the second step."""
    (tmp_path / 'dump_rank.py').write_text(DUMP_HOOK, encoding='utf-8')
    path = small_config(
        CONFIG
        + """
custom_imports = dict(imports=['kronattn_mm', 'dump_rank'], allow_failed_imports=False)
custom_hooks += [dict(type='mmengine.DumpRank')]
train_cfg = dict(max_epochs=13, val_interval=100)
default_hooks = dict(checkpoint=dict(interval=100))
"""
    )
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        port = listener.getsockname()[1]
    environment = dict(
        os.environ,
        OMP_NUM_THREADS='1',
        PYTHONPATH=str(tmp_path),
        PORT=str(port),
        PYTHON=sys.executable,
    )
    done = subprocess.run(
        ['bash', ROOT / 'tools' / 'dist_train.sh', path, '2', '--work-dir', tmp_path / 'run'],
        env=environment,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = [
        torch.load(tmp_path / 'run' / f'rank{rank}.pth', weights_only=False) for rank in (0, 1)
    ]
    for rank in ranks:
        assert rank['kind'] == 'MMDistributedDataParallel' and not rank['unused']
        assert rank['steps'] == 52
        assert_only_trained_changed(rank['before'], rank['state'])
    for name, value in ranks[0]['state'].items():
        if 'running_' not in name and 'num_batches' not in name:  # they see different pictures
            assert torch.equal(value, ranks[1]['state'][name]), name
