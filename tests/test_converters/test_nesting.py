"""The same weights under other prefixes, found by comparing keys and shapes, or said."""

from pathlib import Path

import pytest
import torch
from converted import assert_same, inferring, load, trained
from torch import nn

from kronattn_mm.converters import ConversionError
from kronattn_mm.converters.nesting import find_rules
from kronattn_mm.cost.config import load_model

CONFIG = """
default_scope = 'mmdet'
custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
model = dict(
    type='RetinaNet',
    backbone=dict(type='MobileNetV2', widen_factor=0.1, out_indices=(1, 2, 4)),
    neck={neck},
    bbox_head=dict(type='RetinaHead', num_classes={classes}, in_channels=8, feat_channels=8,
                   stacked_convs=1))
"""
FPN = "dict(type='FPN', in_channels=[8, 8, 16], out_channels=8, num_outs=5)"
ATTENDED = """dict(type='kronattn_mm.Plugged', base='mmdet.FPN', in_channels=[8, 8, 16],
             out_channels=8, num_outs=5, insert=[dict(at='fpn1-2', layer=dict(
                 type='kronattn_mm.EfficientAttention2d', key_channels=4, value_channels=4))])"""
LIST = f'[{FPN}]'
TWO = f"[{FPN}, dict(type='BFP', in_channels=8, num_levels=5, refine_type='conv')]"


@pytest.fixture
def config(tmp_path: Path):
    pytest.importorskip('mmdet')

    def write(neck: str, classes: int = 2) -> Path:
        path = tmp_path / f'config{len(list(tmp_path.iterdir()))}.py'
        path.write_text(CONFIG.format(neck=neck, classes=classes))
        return path

    return write


def test_list_neck_onto_a_config_with_insertions_and_back(
    convert, save, config, tmp_path: Path
) -> None:
    nested, attended = config(LIST), config(ATTENDED)
    source = trained(load_model(nested)[0])
    text = convert('nesting', save(source), tmp_path / 'out.pth', '--config', attended)
    assert 'neck.0. -> neck.' in text and '16 new' in text and '0 dropped' in text
    target = inferring(load_model(attended)[0])
    result = target.load_state_dict(load(tmp_path / 'out.pth'), strict=False)
    assert not result.unexpected_keys
    assert all(key.startswith('neck.attention.fpn') for key in result.missing_keys)
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():  # inserted layers start as the identity
        for got, expected in zip(target.extract_feat(x), source.extract_feat(x), strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=0)
    convert('nesting', tmp_path / 'out.pth', tmp_path / 'back.pth', '--config', nested)
    assert_same(load(tmp_path / 'back.pth'), source.state_dict())


def test_attention_moves_along_with_its_neck(convert, save, config, tmp_path: Path) -> None:
    attended, nested = config(ATTENDED), config(f'[{ATTENDED}]')
    source = trained(load_model(attended)[0])
    text = convert('nesting', save(source), tmp_path / 'out.pth', '--config', nested, '--verbose')
    assert 'neck.attention.fpn1.keys.weight -> neck.0.attention.fpn1.keys.weight' in text
    convert('nesting', tmp_path / 'out.pth', tmp_path / 'back.pth', '--rename', 'neck.0=neck')
    assert_same(load(tmp_path / 'back.pth'), source.state_dict())
    # A model without the attention has no place for it, and dropping it has to be said.
    text = convert('nesting', save(source), tmp_path / 'no.pth', '--config', config(LIST), code=1)
    assert 'it has no neck' in text and not (tmp_path / 'no.pth').exists()


def test_wrappers_averages_and_parts(convert, save, config, tmp_path: Path) -> None:
    plain = config(FPN)
    source = trained(load_model(plain)[0])
    state = source.state_dict()
    wrapped = {f'module.{key}': value for key, value in state.items()}
    average = {f'module.{key}': value + 1 for key, value in state.items()}
    file = save(wrapped, ema_state_dict=average | dict(steps=torch.tensor(3)), optimizer={})
    text = convert('nesting', file, tmp_path / 'out.pth', '--config', plain)
    assert 'the wrapper module. was removed' in text
    assert 'entries left out: ema_state_dict, optimizer' in text
    assert_same(load(tmp_path / 'out.pth'), state)
    convert(
        'nesting', file, tmp_path / 'raw.pth', '--entry', 'ema_state_dict', '--rename', 'module='
    )
    assert torch.equal(
        load(tmp_path / 'raw.pth')['neck.fpn_convs.0.conv.bias'],
        state['neck.fpn_convs.0.conv.bias'] + 1,
    )
    text = convert(
        'nesting', file, tmp_path / 'backbone.pth', '--config', plain, '--part', 'backbone'
    )
    assert 'neck.' in text and 'not of backbone' in text
    assert_same(load(tmp_path / 'backbone.pth'), source.backbone.state_dict())
    convert(
        'nesting',
        tmp_path / 'backbone.pth',
        tmp_path / 'whole.pth',
        '--config',
        plain,
        '--allow',
        'neck',
        'bbox_head',
    )
    assert_same(
        load(tmp_path / 'whole.pth'),
        {key: value for key, value in state.items() if key.startswith('backbone.')},
    )


def test_what_is_missing_or_of_another_shape_has_to_be_allowed(
    convert, save, config, tmp_path: Path
) -> None:
    source = trained(load_model(config(FPN))[0])
    output = tmp_path / 'out.pth'
    text = convert('nesting', save(source), output, '--config', config(TWO), code=1)
    assert 'it needs neck.1.refine.conv.' in text
    text = convert('nesting', save(source), output, '--config', config(LIST, classes=5), code=1)
    assert 'of another shape is bbox_head.retina_cls.' in text and ', (18' in text
    assert not output.exists()
    text = convert(
        'nesting',
        save(source),
        output,
        '--config',
        config(LIST, classes=5),
        '--allow',
        'bbox_head.retina_cls',
    )
    assert 'of another shape, which was allowed' in text
    assert 'bbox_head.retina_cls.weight' not in load(output)


def test_rules_that_do_not_fit_or_collide_are_refused(convert, save, tmp_path: Path) -> None:
    state = dict(neck=torch.ones(1)) | {'a.weight': torch.ones(2), 'b.weight': torch.ones(2)}
    output = tmp_path / 'no.pth'
    assert "no key below 'x' to rename; the prefixes are neck, a, b" in convert(
        'nesting', save(state), output, '--rename', 'x=y', code=1
    )
    assert 'both a.weight and b.weight would become b.weight' in convert(
        'nesting', save(state), output, '--rename', 'a=b', code=1
    )
    assert 'nothing would change' in convert('nesting', save(state), output, code=1)
    assert "nothing to drop below 'x'" in convert(
        'nesting', save(state), output, '--drop', 'x', code=1
    )
    assert not output.exists()
    # Two layers alike: nothing says which of them the one in the file is.
    model = nn.ModuleDict(
        {name: nn.ModuleDict(dict(fc=nn.Linear(2, 2))) for name in ('first', 'second')}
    )
    weights = nn.Linear(2, 2).state_dict()
    with pytest.raises(ConversionError, match='more than one place; say which with --rename'):
        find_rules({f'other.fc.{key}': value for key, value in weights.items()}, model)
    del model['second']
    assert find_rules({f'other.fc.{key}': value for key, value in weights.items()}, model) == {
        'other': 'first'
    }
    # That both end in weight does not make one layer of the two.
    assert find_rules({f'other.{key}': value for key, value in weights.items()}, model) == {}
