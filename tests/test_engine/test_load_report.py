"""Whether a checkpoint was loaded: what is ours is expected, anything else is an error."""

from pathlib import Path

import pytest
import torch

pytest.importorskip('mmdet')

from mmengine.model import BaseModel
from mmengine.runner import Runner

from kronattn_mm.engine.load_report import CheckLoadedKeysHook, check_loaded_keys, loaded_keys
from kronattn_mm.plugging import Plugged

ARGUMENTS = dict(depth=18, base_channels=8, out_indices=(3,))
INSERT = [dict(at='res3', layer=dict(type='kronattn_mm.EfficientAttention2d'))]
CONVS = [dict(at='layer4.0.conv1', layer=dict(type='kronattn_mm.ShiftBalanceConv2d'))]


class Model(BaseModel):
    """A backbone and a classifier on one number."""

    def __init__(self, classes: int = 3, init_cfg: dict | None = None, **plugged: object) -> None:
        super().__init__()
        self.backbone = Plugged('mmdet.ResNet', init_cfg=init_cfg, **ARGUMENTS, **plugged)
        self.head = torch.nn.Linear(64, classes)

    def forward(self, inputs: list, mode: str) -> dict | list:
        scores = self.head(self.backbone(torch.stack(inputs))[0].mean((2, 3)))
        return dict(loss=scores.square().mean()) if mode == 'loss' else []


def run(
    model: Model, work_dir: Path, hook: CheckLoadedKeysHook, name: str, **arguments: object
) -> str:
    """Train one epoch and return the log."""
    data = [dict(inputs=torch.zeros(3, 32, 32)) for _ in range(2)]
    loader = dict(dataset=data, sampler=dict(type='DefaultSampler', shuffle=False), batch_size=2)
    runner = Runner(
        model,
        str(work_dir),
        train_dataloader=loader,
        custom_hooks=[hook],
        train_cfg=dict(by_epoch=True, max_epochs=1),
        experiment_name=name,
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        **arguments,
    )
    try:
        runner.train()
    finally:
        log = max(work_dir.glob('*/*.log'), key=lambda path: path.stat().st_mtime)
        text = log.read_text(encoding='utf-8')
    return text


def test_three_lines_for_a_plain_checkpoint() -> None:
    plain = Model().state_dict()
    model = Model(insert=INSERT, convs=CONVS)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    report = check_loaded_keys(model, dict(state_dict=plain))
    new = len(before) - len(plain)
    assert report.lines() == [
        f'upstream keys loaded: {len(plain)} of {len(plain)}',
        f'new keys, all ours: {new}',
        'anything else: nothing',
    ]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    # Our own checkpoint, from several processes, has everything.
    whole = {f'module.{key}': value for key, value in before.items()}
    assert (
        check_loaded_keys(model, whole).lines()[1]
        == f'new keys, all ours: 0 ({new} more of ours loaded)'
    )


def test_anything_else_is_named() -> None:
    model = Model(insert=INSERT)
    state = Model(classes=80).state_dict()
    state['backbone.layer1.0.conv1.wight'] = state.pop('backbone.layer1.0.conv1.weight')
    with pytest.raises(ValueError) as error:
        check_loaded_keys(model, state)
    for text in (
        '1 not in the checkpoint: backbone.layer1.0.conv1.weight',
        '1 not in the model: backbone.layer1.0.conv1.wight',
        '2 of another shape: head.weight (80x64 in the checkpoint, 3x64 in the model)',
        'Nearest in the checkpoint to backbone.layer1.0.conv1.weight: '
        'backbone.layer1.0.conv1.wight',
        "allow=['backbone.layer1.0.conv1', ...]",
    ):
        assert text in str(error.value)
    report = check_loaded_keys(model, state, allow=['head', 'backbone.layer1.*'])
    assert report.allowed == 4 and report.upstream - report.upstream_loaded == 3
    assert report.lines()[2] == 'anything else: nothing (and 4 that are allowed)'


def test_counters_that_old_checkpoints_lack_are_no_error() -> None:
    state = {
        key: value
        for key, value in Model().state_dict().items()
        if 'num_batches_tracked' not in key
    }
    assert check_loaded_keys(Model(insert=INSERT), state).ok


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match='holds no weights; its entries are meta'):
        loaded_keys(Model(), dict(meta={}))
    with pytest.raises(TypeError, match='allow must be a list'):
        loaded_keys(Model(), {}, allow='head')
    with pytest.raises(TypeError, match='allow must be a list'):
        CheckLoadedKeysHook(allow='head')
    torch.save([1], tmp_path / 'list.pth')
    with pytest.raises(TypeError, match='a checkpoint is a dict, got a list'):
        loaded_keys(Model(), tmp_path / 'list.pth')


def test_the_hook_looks_at_load_from_and_resume(tmp_path: Path) -> None:
    plain, wrong = tmp_path / 'plain.pth', tmp_path / 'wrong.pth'
    torch.save(dict(state_dict=Model().state_dict()), plain)
    torch.save(dict(state_dict=Model(classes=80).state_dict()), wrong)
    hook = CheckLoadedKeysHook()
    text = run(Model(insert=INSERT), tmp_path / 'a', hook, 'load', load_from=str(plain))
    assert 'new keys, all ours: 8' in text and 'anything else: nothing' in text
    text = run(Model(insert=INSERT), tmp_path / 'a', hook, 'resume', resume=True)
    assert 'new keys, all ours: 0 (8 more of ours loaded)' in text
    with pytest.raises(ValueError, match='2 of another shape: head.weight'):
        run(Model(insert=INSERT), tmp_path / 'b', hook, 'wrong', load_from=str(wrong))
    run(
        Model(insert=INSERT),
        tmp_path / 'b',
        CheckLoadedKeysHook(allow=['head']),
        'allowed',
        load_from=str(wrong),
    )


def test_the_hook_looks_at_pretrained_parts(tmp_path: Path) -> None:
    whole, part = tmp_path / 'whole.pth', tmp_path / 'part.pth'
    state = Model().state_dict()
    torch.save(dict(state_dict=state), whole)
    torch.save(
        {
            key.removeprefix('backbone.'): value
            for key, value in state.items()
            if 'layer2' not in key
        },
        part,
    )
    good = dict(type='Pretrained', checkpoint=str(whole), prefix='backbone.')
    text = run(Model(init_cfg=good, insert=INSERT), tmp_path / 'a', CheckLoadedKeysHook(), 'good')
    assert f'init_cfg of backbone from {whole}:' in text and 'new keys, all ours: 8' in text
    bad = dict(type='Pretrained', checkpoint=str(part))
    with pytest.raises(ValueError, match='init_cfg of backbone: .*backbone|layer2.0.bn1.bias'):
        run(Model(init_cfg=bad, insert=INSERT), tmp_path / 'b', CheckLoadedKeysHook(), 'bad')
