"""AnnealTemperature under mmengine's runner: the line, resuming, averaged weights, bad use."""

import pytest
import torch
from torch import nn

pytest.importorskip('mmengine')

from mmengine.model import BaseModel
from mmengine.runner import Runner

from kronattn_mm.engine import AnnealTemperature
from kronattn_mm.layers import DynamicConv2d


class Net(BaseModel):
    def __init__(self, temperature: float = 30.0, dynamic: bool = True):
        super().__init__()
        torch.manual_seed(0)
        self.conv = (
            DynamicConv2d(3, 4, 1, temperature=temperature) if dynamic else nn.Conv2d(3, 4, 1)
        )
        self.other = nn.Conv2d(4, 4, 1)
        self.seen = []

    def forward(self, inputs, mode='tensor'):
        if mode == 'loss':
            self.seen.append(float(self.conv.attention.temperature))
        out = self.other(self.conv(inputs)).square().mean()
        return dict(loss=out) if mode == 'loss' else [out]


class Batches(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.full((3, 4, 4), float(index))


def train(folder, net, epochs, hooks=None, resume=False, by_epoch=True, load_from=None):
    cfg = dict(by_epoch=True, max_epochs=epochs) if by_epoch else dict(by_epoch=False, max_iters=4)
    runner = Runner(
        net,
        str(folder),
        train_cfg=cfg,
        resume=resume,
        load_from=load_from,
        train_dataloader=dict(
            batch_size=2,
            dataset=Batches(),
            collate_fn=lambda items: dict(inputs=torch.stack(items)),
            sampler=dict(type='DefaultSampler', shuffle=False),
        ),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=1e-4)),
        default_scope='kronattn_mm',
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=1),
            logger=None,
            runtime_info=dict(type='RuntimeInfoHook'),
        ),
        custom_hooks=hooks
        if hooks is not None
        else [dict(type='kronattn_mm.AnnealTemperature', epochs=4, end=2.0)],
        experiment_name=f'{folder.name}_{epochs}_{resume}_{id(net)}',
        log_level='ERROR',
    )
    runner.train()
    return runner


def of_epochs(seen):
    assert all(seen[start] == seen[start + 2] for start in range(0, len(seen), 3))
    return seen[::3]


def test_line_and_resuming(tmp_path):
    line = [30.0, 23.0, 16.0, 9.0, 2.0, 2.0]
    whole = Net()
    train(tmp_path / 'whole', whole, 6)
    assert of_epochs(whole.seen) == pytest.approx(line)
    first, second = Net(), Net()
    train(tmp_path / 'parts', first, 3)
    train(tmp_path / 'parts', second, 6, resume=True)
    assert of_epochs(first.seen + second.seen) == pytest.approx(line)
    assert float(second.conv.attention.temperature) == 2
    for one, other in zip(whole.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    # A checkpoint keeps the temperature with which its epoch was trained, for evaluation.
    saved = torch.load(tmp_path / 'whole' / 'epoch_3.pth', weights_only=False)
    assert float(saved['state_dict']['conv.attention.temperature']) == 16
    # Weights to start from bring their temperature; training begins with the config's anyway.
    tuned = Net(temperature=10.0)
    train(tmp_path / 'tuned', tuned, 2, load_from=str(tmp_path / 'whole' / 'epoch_6.pth'))
    assert of_epochs(tuned.seen) == pytest.approx([10.0, 8.0])


@pytest.mark.parametrize('update_buffers', [False, True])
def test_averaged_weights(tmp_path, update_buffers):
    hooks = [
        dict(type='AnnealTemperature', epochs=4, end=2.0),
        dict(type='EMAHook', momentum=0.01, update_buffers=update_buffers),
    ]
    train(tmp_path, Net(), 3, hooks)
    saved = torch.load(tmp_path / 'epoch_3.pth', weights_only=False)
    key = 'conv.attention.temperature'
    assert float(saved['state_dict'][key]) == 16  # the averaged model's, which is deployed
    assert float(saved['ema_state_dict'][f'module.{key}']) == 16
    resumed = Net()
    train(tmp_path, resumed, 5, hooks, resume=True)
    assert of_epochs(resumed.seen) == pytest.approx([9.0, 2.0])


def test_misuse(tmp_path):
    with pytest.raises(ValueError, match='epochs must be at least 1, got 0'):
        AnnealTemperature(epochs=0)
    with pytest.raises(TypeError, match="epochs must be an integer, got '3'"):
        AnnealTemperature(epochs='3')
    with pytest.raises(ValueError, match='end must be a positive number, got 0'):
        AnnealTemperature(end=0)
    with pytest.raises(ValueError, match='end must be a positive number, got inf'):
        AnnealTemperature(end=float('inf'))
    with pytest.raises(ValueError, match='the model has no DynamicConv2d'):
        train(tmp_path / 'a', Net(dynamic=False), 1)
    with pytest.raises(ValueError, match='counts epochs, and IterBasedTrainLoop has none'):
        train(tmp_path / 'b', Net(), 1, by_epoch=False)
