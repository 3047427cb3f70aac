"""What GateStatistics measures, and that it reaches the logs and changes nothing."""

import json

import pytest
import torch
from torch import nn

pytest.importorskip('mmengine')

from mmengine.model import BaseModel
from mmengine.runner import Runner

from kronattn_mm.engine import GateStatistics
from kronattn_mm.layers import (
    DynamicConv2d,
    ShiftBalance2d,
    ShiftBalanceConv2d,
    SqueezeExcite2d,
    SqueezeExciteConv2d,
)
from kronattn_mm.layers.attention_branch import GATES, apply_gate
from kronattn_mm.visualization.gates import GateRecorder, gate_slope


def fix_gate(branch: nn.Module, values: list[float]) -> None:
    """Make z the given values for every image: a batch norm with weight 0 and that bias."""
    nn.init.zeros_(branch.norm2.weight)
    with torch.no_grad():
        branch.norm2.bias.copy_(torch.tensor(values))


@pytest.mark.parametrize('gate', GATES)
def test_slope_is_the_derivative(gate):
    z = torch.randn(3, 5, dtype=torch.double)
    jacobian = torch.func.vmap(torch.func.jacrev(lambda row: apply_gate(row[None], gate)[0]))(z)
    torch.testing.assert_close(gate_slope(z, gate), jacobian.diagonal(dim1=1, dim2=2))


def test_terms_of_both_kinds():
    shift = ShiftBalanceConv2d(3, 4, 1)
    fix_gate(shift.attention, [0.0, 20.0, -20.0, 0.0])
    with torch.no_grad():
        shift.attention.lambda_.copy_(torch.tensor([0.5, 0.5, 0.5, 1e-4]))
    scale = SqueezeExciteConv2d(4, 4, 1, bias=False)
    fix_gate(scale.attention, [0.0, 20.0, -20.0, 0.0])
    with torch.no_grad():
        scale.weight[3].zero_()  # T is 0 in the last channel, so that A has no gradient there
    dynamic = DynamicConv2d(4, 4, 1)
    net = nn.Sequential(shift, scale, dynamic)
    net.train()
    recorder = GateRecorder(net)
    x = torch.randn(5, 3, 6, 6)
    with recorder.recording():
        net(x)
    first, second = recorder.records['0'], recorder.records['1']
    assert list(recorder.records) == ['0', '1']
    assert (first.kind, second.kind) == ('shift', 'scale')
    assert first.channels == second.channels == 5 * 4
    # Tanh is flat on both sides; a small lambda hides the branch as well; the trunk always learns.
    assert [first.share(what) for what in ('gate', 'attention', 'trunk', 'both')] == [
        0.5,
        0.75,
        0,
        0,
    ]
    # The sigmoid is flat on both sides, but only on the side of zero is the trunk cut off.
    assert [second.share(what) for what in ('gate', 'attention', 'trunk', 'both')] == [
        0.5,
        0.75,
        0.25,
        0.25,
    ]
    assert recorder.shares() == dict(gate=0.5, attention=0.75, trunk=0.125, both=0.125)
    torch.testing.assert_close(recorder.lambdas(), torch.tensor([0.5, 0.5, 0.5, 1e-4]))


def test_trunk_is_what_meets_the_gate():
    """With the product after the norm, T of equation 4 is the norm's output."""
    pytest.importorskip('mmcv')
    from mmcv.cnn import ConvModule
    from mmengine.registry import MODELS as ROOT_MODELS

    import kronattn_mm.registry  # noqa: F401  (registers the scope)

    ROOT_MODELS.register_module(name='GateTestConvModule', module=ConvModule, force=True)
    shares = {}
    for place in ('before_norm', 'after_norm'):
        module = ROOT_MODELS.build(
            dict(
                type='kronattn_mm.Plugged',
                base='mmengine.GateTestConvModule',
                in_channels=3,
                out_channels=4,
                kernel_size=1,
                norm_cfg=dict(type='BN'),
                convs=[
                    dict(at='conv', layer=dict(type='kronattn_mm.SqueezeExciteConv2d', place=place))
                ],
            )
        )
        with torch.no_grad():
            module.bn.weight.copy_(torch.tensor([1.0, 0.0, 1.0, 0.0]))  # T after it is 0 in two
        module.eval()
        recorder = GateRecorder(module)
        with recorder.recording(), torch.no_grad():
            first = module(torch.ones(2, 3, 4, 4))
        assert torch.equal(first, module(torch.ones(2, 3, 4, 4)))
        shares[place] = recorder.records['conv'].share('attention')
    assert shares == dict(before_norm=0, after_norm=0.5)


def test_measuring_changes_nothing():
    net = nn.Sequential(ShiftBalanceConv2d(3, 4, 1), ShiftBalance2d(4), SqueezeExcite2d(4))
    x = torch.randn(4, 3, 5, 5)
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    recorder = GateRecorder(net)
    with recorder.recording(), torch.no_grad():
        net.eval()
        net(x)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(module._forward_pre_hooks for module in net.modules())
    assert all(record.channels for record in recorder.records.values())


class Net(BaseModel):
    def __init__(self, gated: bool = True):
        super().__init__()
        torch.manual_seed(0)
        self.conv = ShiftBalanceConv2d(3, 4, 1) if gated else nn.Conv2d(3, 4, 1)

    def forward(self, inputs, mode='tensor'):
        out = self.conv(inputs).square().mean()
        return dict(loss=out) if mode == 'loss' else [out]


class Batches(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.full((3, 4, 4), float(index))


def run(folder, net, hooks):
    from mmengine.evaluator import BaseMetric

    class Loss(BaseMetric):
        def process(self, data_batch, data_samples):
            self.results += [float(sample) for sample in data_samples]

        def compute_metrics(self, results):
            return dict(value=sum(results))

    loader = dict(
        batch_size=2,
        dataset=Batches(),
        collate_fn=lambda items: dict(inputs=torch.stack(items)),
        sampler=dict(type='DefaultSampler', shuffle=False),
    )
    runner = Runner(
        net,
        str(folder),
        train_cfg=dict(by_epoch=True, max_epochs=2),
        train_dataloader=loader,
        val_dataloader=dict(loader),
        val_cfg=dict(),
        val_evaluator=[Loss()],
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        default_scope='kronattn_mm',
        custom_hooks=hooks,
        log_level='ERROR',
        visualizer=dict(
            type='Visualizer',
            name=f'{folder.name}_{id(net)}',
            vis_backends=[dict(type='LocalVisBackend')],
        ),
        experiment_name=f'{folder.name}_{id(net)}',
    )
    runner.train()
    records = [
        json.loads(line)
        for file in folder.glob('*/vis_data/scalars.json')
        for line in file.read_text().splitlines()
    ]
    return [record for record in records if 'value' in record]


def test_in_the_logs_beside_the_metrics(tmp_path):
    net = Net()
    records = run(tmp_path / 'with', net, [dict(type='kronattn_mm.GateStatistics', num_batches=1)])
    assert [record['step'] for record in records] == [1, 2]
    last = records[-1]
    lambdas = net.conv.attention.lambda_.detach()
    assert last['gate/lambda_mean'] == pytest.approx(lambdas.mean().item(), rel=1e-6)
    assert last['gate/lambda_std'] == pytest.approx(lambdas.std(correction=0).item(), rel=1e-5)
    assert {'gate/saturated', 'gate/attention_below', 'gate/trunk_below', 'gate/both_below'} < set(
        last
    )
    without = run(tmp_path / 'without', Net(), [])
    assert [record['value'] for record in without] == [record['value'] for record in records]
    # A network without gates can be in the same comparison.
    plain = run(tmp_path / 'plain', Net(gated=False), [dict(type='kronattn_mm.GateStatistics')])
    assert not any(key.startswith('gate/') for key in plain[-1])


@pytest.mark.parametrize(
    ('arguments', 'error', 'message'),
    [
        (dict(num_batches=0), ValueError, 'num_batches must be at least 1, got 0'),
        (dict(num_batches=1.5), TypeError, 'num_batches must be an integer, got 1.5'),
        (dict(threshold=0), ValueError, 'threshold must be positive, got 0'),
        (dict(threshold='1e-3'), TypeError, "threshold must be a number, got '1e-3'"),
    ],
)
def test_misuse(arguments, error, message):
    with pytest.raises(error, match=message):
        GateStatistics(**arguments)
