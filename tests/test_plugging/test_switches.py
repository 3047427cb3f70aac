"""Off and on: per point, nested, failing, in copies, compiled, exported."""

import copy
import pickle

import pytest
import torch
from mmengine.registry import MODELS
from torch import nn

import kronattn_mm.registry  # noqa: F401
from kronattn_mm import attention_disabled, attention_scaled, inserted_layers, plug
from kronattn_mm.plugging import switches

EA = dict(type='kronattn_mm.EfficientAttention2d', key_channels=4, value_channels=4)


class ShiftedConv2d(nn.Conv2d):
    """A convolution and what a batch norm makes of the mean of its input, added."""

    def __init__(self, *args, **geometry):
        super().__init__(*args, **geometry)
        self.attention = nn.Sequential(
            nn.Conv2d(self.in_channels, self.out_channels, 1), nn.BatchNorm2d(self.out_channels)
        )

    def forward(self, x):
        return super().forward(x) + self.attention(x.mean((2, 3), keepdim=True))


class TwoConvs(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))

    def forward(self, x):
        return self.convs(x)


def plain(**arguments):
    module = MODELS.build(dict(type='mmdet.ResNet', depth=18, **arguments))
    module.eval()  # which returns nothing
    return module


def plugged(insert=(), convs=(), plain_state=None, **arguments):
    """A ResNet-18 with layers that all do something."""
    module = MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base='mmdet.ResNet',
            depth=18,
            insert=list(insert),
            convs=list(convs),
            **arguments,
        )
    )
    module.eval()
    with torch.no_grad():
        for insertion in inserted_layers(module).values():
            for parameter in insertion.layer.parameters():
                parameter.normal_(std=0.1)
    if plain_state is not None:
        module.load_state_dict(plain_state, strict=False)
    return module


def everything(plain_state=None):
    return plugged(
        [dict(at='res2-3', layer=EA), dict(at='out3', layer=dict(type='NonLocal2d'))],
        [dict(at='layer3', layer=dict(type=ShiftedConv2d))],
        plain_state,
    )


def image():
    return torch.randn(2, 3, 64, 64)


def equal(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def state(model):
    return {name: (part.enabled, part.scale) for name, part in switches(model).items()}


@torch.no_grad()
def test_all_off_is_the_plain_model_bit_for_bit():
    base = plain()
    module = everything(base.state_dict())
    x = image()
    wanted, trained = base(x), module(x)
    assert not equal(trained, wanted)
    with attention_disabled(module):
        assert equal(module(x), wanted)
    with attention_scaled(module, 0):
        assert equal(module(x), wanted)
    assert equal(module(x), trained)


@torch.no_grad()
@pytest.mark.parametrize(
    'points, off',
    [
        ('res3', ['res3']),
        ('res2-3', ['res2', 'res3']),
        ('layer3.1', ['layer3.1.conv1', 'layer3.1.conv2']),
        ('*conv2+out3', ['out3', 'layer3.0.conv2', 'layer3.1.conv2']),
    ],
)
def test_words_choose_points(points, off):
    module = everything()
    x = image()
    with attention_disabled(module, points):
        assert [name for name, part in switches(module).items() if not part.enabled] == off
        chosen = module(x)
    for name in off:
        switches(module)[name].enabled = False
    assert equal(module(x), chosen)


@torch.no_grad()
def test_scaled_is_between_plain_and_full():
    base = plain(out_indices=(1,))
    module = plugged([dict(at='out0', layer=EA)], plain_state=base.state_dict(), out_indices=(1,))
    x = image()
    low, high = base(x)[0], module(x)[0]
    for scale in (0.25, 0.5, -1.0, 2.0):
        with attention_scaled(module, scale):
            torch.testing.assert_close(module(x)[0], low + scale * (high - low))
    conv = plugged(convs=[dict(at='layer1.0.conv1', layer=dict(type=ShiftedConv2d))])
    inner = conv.layer1[0].conv1
    x = torch.randn(2, 64, 8, 8)
    with attention_disabled(conv):
        low = inner(x)
    high = inner(x)
    with attention_scaled(conv, 0.5):
        torch.testing.assert_close(inner(x), (low + high) / 2)


@torch.no_grad()
def test_nested_and_failing_contexts_restore_each_layer():
    module = everything()
    switches(module)['res2'].enabled = False  # off before, and so afterwards
    switches(module)['out3'].scale = 0.5
    before = state(module)
    outer = attention_disabled(module, 'res3')
    with outer, attention_scaled(module, 0.25):
        inside = state(module)
        with outer, attention_disabled(module), attention_scaled(module, 3.0, 'layer3'):
            assert not any(enabled for enabled, _ in state(module).values())
        assert state(module) == inside
        assert inside['res3'] == (False, 0.25) and inside['out3'] == (True, 0.25)
    assert state(module) == before
    with pytest.raises(RuntimeError, match='Given groups=1'):
        with attention_disabled(module), attention_scaled(module, 0.5):
            module(torch.randn(1, 2, 64, 64))
    assert state(module) == before

    @attention_disabled(module)
    def forward(x):
        assert not any(enabled for enabled, _ in state(module).values())
        return module(x)

    forward(image())
    assert state(module) == before


def test_a_layer_that_is_off_learns_nothing():
    module = everything()
    module.train()
    conv, res3 = module.layer3[0].conv1, module.attention.res3
    with attention_disabled(module, 'res3+layer3.0.conv1'):
        sum(output.sum() for output in module(image())).backward()
    assert all(parameter.grad is None for parameter in res3.parameters())
    assert all(parameter.grad is None for parameter in conv.attention.parameters())
    assert conv.weight.grad is not None
    assert conv.attention[1].num_batches_tracked == 0
    assert module.layer3[0].conv2.attention[1].num_batches_tracked == 1


@torch.no_grad()
def test_copies_have_their_own_switches():
    module = everything()
    x = image()
    full = module(x)
    with attention_disabled(module):
        off = module(x)
        copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    assert equal(module(x), full)
    for other in copies:
        assert equal(other(x), off), 'made while off'
        for part in switches(other).values():
            part.enabled = True
        assert equal(other(x), full)
        with attention_disabled(module):
            assert equal(other(x), full)


@torch.no_grad()
def test_compiled_layers_follow_their_switches():
    module = plug(
        TwoConvs(),
        [dict(at='convs.1', layer=dict(EA, zero_init=False))],
        [dict(at='convs.0', layer=dict(type=ShiftedConv2d))],
    )
    module.eval()
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend='eager')
    x = torch.randn(1, 3, 8, 8)
    results = [compiled(x)]
    for context in (
        attention_disabled(module),
        attention_disabled(module, 'convs.1'),
        attention_scaled(compiled, 0.5),
        attention_scaled(module, 0.25),
    ):
        with context:
            torch.testing.assert_close(compiled(x), module(x))
            results.append(compiled(x))
    assert torch.equal(compiled(x), results[0])
    assert all(not torch.equal(a, b) for i, a in enumerate(results) for b in results[:i])


@pytest.mark.slow
@torch.no_grad()
def test_compiled_model_follows_its_switches():
    module = plugged(
        [dict(at='out0', layer=EA)],
        [dict(at='layer1.1', layer=dict(type=ShiftedConv2d))],
        out_indices=(0,),
    )
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend='aot_eager')
    x = image()
    results = [compiled(x)[0]]
    for context in (
        attention_disabled(module),
        attention_disabled(module, 'out0'),
        attention_scaled(compiled, 0.5),
        attention_scaled(module, 0.25),
    ):
        with context:
            torch.testing.assert_close(compiled(x)[0], module(x)[0])
            results.append(compiled(x)[0])
    assert torch.equal(compiled(x)[0], results[0])
    assert all(not torch.equal(a, b) for i, a in enumerate(results) for b in results[:i])


@torch.no_grad()
def test_exported_without_what_is_off():
    module = plugged(
        [dict(at='out0', layer=EA)],
        [dict(at='layer1.1', layer=dict(type=ShiftedConv2d))],
        out_indices=(0,),
    )
    x = image()
    with attention_disabled(module):
        program = torch.export.export(module, (x,))
        wanted = module(x)[0]
    operators = [str(node.target) for node in program.graph.nodes if node.op == 'call_function']
    assert not any('softmax' in operator or 'mean' in operator for operator in operators)
    torch.testing.assert_close(program.module()(x)[0], wanted)
    assert any(
        'softmax' in str(node.target) for node in torch.export.export(module, (x,)).graph.nodes
    )


@torch.no_grad()
def test_off_in_the_config_keeps_the_keys():
    full = everything()
    module = plugged(
        [
            dict(at='res2', layer=EA, enabled=False),
            dict(at='res3', layer=EA),
            dict(at='out3', layer=dict(type='NonLocal2d'), enabled=False),
        ],
        [dict(at='layer3', layer=dict(type=ShiftedConv2d), enabled=False)],
    )
    module.load_state_dict(full.state_dict())
    x = image()
    with attention_disabled(full, 'res2+out3+layer3'):
        assert equal(module(x), full(x))


@pytest.mark.parametrize(
    'at, layer',
    [
        ('layer1.0.conv2', dict(padding_mode='reflect')),
        ('layer1.0.conv2', dict(padding='same')),
        ('layer1.0.conv2', dict(groups=4, dilation=2, padding=2)),
    ],
)
@torch.no_grad()
def test_plain_geometry_of_any_kind(at, layer):
    base = plain()
    conv = nn.Conv2d(64, 64, 3, bias=True, **layer)
    base.layer1[0].conv2 = conv
    module = copy.deepcopy(base)
    plug(module, convs=[dict(at=at, layer=dict(type=ShiftedConv2d))])
    x = torch.randn(2, 64, 9, 9)
    with attention_disabled(module):
        assert torch.equal(module.layer1[0].conv2(x), conv(x))


@pytest.mark.parametrize(
    'call, error, message',
    [
        (
            lambda m: attention_disabled(m, 'rse3'),
            ValueError,
            "'rse3' names nothing that is inserted; did you mean 'res3'. there are res2, res3",
        ),
        (lambda m: attention_disabled(m, ['res3']), TypeError, 'must be a string'),
        (lambda m: attention_disabled(m.layer1), ValueError, 'nothing is inserted into this'),
        (lambda m: attention_scaled(m, '1'), TypeError, "scale must be a number, got '1'"),
        (lambda m: attention_scaled(m, float('nan')), ValueError, 'must be finite, got nan'),
    ],
)
def test_mistakes(call, error, message):
    module = everything()
    with pytest.raises(error, match=message):
        call(module)
    with pytest.raises(ValueError, match='a Sequential calls every child'):
        plug(TwoConvs().convs, [dict(at='1', layer=EA)])
    with pytest.raises(TypeError, match='`enabled` must be True or False, got 0'):
        plugged([dict(at='res2', layer=EA, enabled=0)])
