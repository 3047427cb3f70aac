"""Attended convolutions through their whole life: on, off, shared, taken out."""

import copy
import pickle

import pytest
import torch
from mmengine.registry import MODELS

pytest.importorskip('mmdet')
pytest.importorskip('safetensors')
import kronattn_mm.registry  # noqa: F401
from kronattn_mm import (
    attention_disabled,
    attention_scaled,
    attention_status,
    plug,
    plug_from_file,
    save_attention,
    unplug,
)
from kronattn_mm.plugging import switches

TYPES = {
    'shift_balance': dict(type='kronattn_mm.ShiftBalanceConv2d'),
    'after_norm': dict(type='kronattn_mm.ShiftBalanceConv2d', place='after_norm'),
    'squeeze_excite': dict(type='kronattn_mm.SqueezeExciteConv2d'),
    'dynamic': dict(type='kronattn_mm.DynamicConv2d'),
    'cond': dict(type='kronattn_mm.CondConv2d'),
}


def plain():
    module = MODELS.build(dict(type='mmdet.MobileNetV2', widen_factor=0.25))
    module.eval()
    return module


def outputs(module, x):
    with torch.no_grad():
        return torch.cat([output.flatten() for output in module(x)])


@pytest.mark.parametrize('layer', TYPES.values(), ids=list(TYPES))
def test_on_off_shared_and_out(layer, tmp_path):
    base = plain()
    untouched = pickle.dumps(base), repr(base)
    x = torch.randn(1, 3, 64, 64)
    wanted = outputs(base, x)
    module = plug(copy.deepcopy(base), convs=[dict(at='layer*', layer=layer)])
    with torch.no_grad():
        for key, value in module.state_dict().items():
            if '.attention.' in key and value.is_floating_point():
                value.copy_(torch.rand_like(value) * 0.5 + 0.1)
    trained = outputs(module, x)
    assert not torch.equal(trained, wanted)
    assert len(switches(module)) == 50
    assert all(row.parameters > 0 for row in attention_status(module))

    with attention_disabled(module):
        assert torch.equal(outputs(module, x), wanted)
        with attention_scaled(module, 0.5):
            assert torch.equal(outputs(module, x), wanted), 'what is off stays off'
    with attention_scaled(module, 0):
        torch.testing.assert_close(outputs(module, x), wanted)
    with attention_disabled(module, 'layer7'):
        assert not torch.equal(outputs(module, x), trained)
    assert torch.equal(outputs(module, x), trained)

    save_attention(module, tmp_path / 'convs.safetensors', plain=base.state_dict())
    other = copy.deepcopy(base)
    assert plug_from_file(other, tmp_path / 'convs.safetensors').same_base
    assert torch.equal(outputs(other, x), trained)
    copied = copy.deepcopy(other)
    assert torch.equal(outputs(copied, x), trained)
    for taken in (copied, other):
        assert torch.equal(outputs(unplug(taken), x), wanted)
        assert repr(taken) == untouched[1]
    assert list(other.state_dict()) == list(base.state_dict())

    plug(base, convs=[dict(at='layer*', layer=layer)])
    assert pickle.dumps(unplug(base)) == untouched[0], 'byte for byte'


def test_norms_that_are_held_are_said_to_be():
    module = plug(
        plain(),
        convs=[
            dict(at='layer1', layer=dict(TYPES['shift_balance'], norm_eval=True)),
            dict(at='layer2', layer=TYPES['shift_balance']),
        ],
    )
    module.train()
    assert {row.norms for row in attention_status(module) if 'layer1' in row.name} == {'eval'}
    assert {row.norms for row in attention_status(module) if 'layer2' in row.name} == {'train'}
