"""The layers that are listed, and their arguments, are those that can be built."""

import json

import pytest
from analysis_tool import call_tool, load_tool

from kronattn_mm import layers
from kronattn_mm.listing import list_layers


@pytest.fixture(scope='module')
def tool():
    return load_tool('layers')


def test_all_of_this_package_are_there():
    entries = {entry.type: entry for entry in list_layers()}
    assert {f'kronattn_mm.{name}' for name in layers.__all__} <= entries.keys()
    assert all(entry.sentence.strip() for entry in entries.values())
    attention = entries['kronattn_mm.EfficientAttention2d']
    assert attention.use == 'insert' and attention.sentence.startswith('Efficient attention over')
    assert {item.name: item.default for item in attention.arguments}['key_channels'] == '64'
    assert 'in_channels' not in {item.name for item in attention.arguments}
    conv = entries['kronattn_mm.ShiftBalanceConv2d']
    assert conv.use == 'convs' and 'kernel_size' not in {item.name for item in conv.arguments}


def test_defaults_are_written_as_python_has_them():
    for entry in list_layers():
        if entry.type.startswith('kronattn_mm.') and entry.use == 'insert':
            cls = getattr(layers, entry.type.partition('.')[2])
            cls(16, **{item.name: eval(item.default) for item in entry.arguments})


def test_mmcv_passes_arguments_on():
    pytest.importorskip('mmcv')
    (entry,) = list_layers(['NonLocal2d'])
    assert entry.type == 'NonLocal2d'
    assert {'sub_sample', 'reduction', 'mode'} <= {item.name for item in entry.arguments}
    (block,) = list_layers(['ContextBlock'])
    assert {item.name: item.default for item in block.arguments}['ratio'] == 'required'


def test_as_text_and_json(tool, capfd):
    code, out, _ = call_tool(tool, capfd)
    assert code == 0 and '\nkronattn_mm.KroneckerAttention2d\n' in out
    assert max(map(len, out.splitlines())) <= 100
    code, out, _ = call_tool(tool, capfd, 'KroneckerAttention2d', '--json')
    assert code == 0 and json.loads(out)[0]['type'] == 'kronattn_mm.KroneckerAttention2d'


def test_the_nearest_name(tool, capfd):
    pytest.importorskip('mmengine')
    code, out, err = call_tool(tool, capfd, 'EficientAttention2d')
    assert code == 2 and "did you mean 'kronattn_mm.EfficientAttention2d'?" in err and not out
