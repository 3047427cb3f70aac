"""A classifier's MobileNetV2 becomes a detector's, as a user does it."""

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip('mmdet')
pytest.importorskip('mmpretrain')

from mmengine.registry import MODELS

ROOT = Path(__file__).resolve().parents[2]
SHIFT_BALANCE = dict(at='layer*', layer=dict(type='kronattn_mm.ShiftBalanceConv2d'))


@pytest.fixture(scope='module')
def tool() -> ModuleType:
    path = ROOT / 'tools' / 'model_converters' / 'mobilenetv2_to_mmdet.py'
    spec = importlib.util.spec_from_file_location('mobilenetv2_to_mmdet', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def backbone(library: str, convs: list, **arguments) -> torch.nn.Module:
    return MODELS.build(dict(type='kronattn_mm.Plugged', base=f'{library}.MobileNetV2',
                             convs=convs, widen_factor=0.35, **arguments))


@pytest.mark.parametrize('convs', [[], [SHIFT_BALANCE]], ids=['static', 'sb'])
def test_the_detectors_backbone_computes_what_the_classifiers_did(
        tool: ModuleType, convs: list, tmp_path: Path, capsys) -> None:
    theirs = backbone('mmpretrain', convs, out_indices=(2, 7))
    state = theirs.state_dict()
    for key, value in state.items():  # as after training, not 0 and 1
        if key.endswith('running_var'):
            torch.nn.init.uniform_(value, 0.5, 1.5)
        elif value.dim() == 4:
            torch.nn.init.normal_(value, 0, math.sqrt(2 / value[0].numel()))
    checkpoint = {f'backbone.{key}': value for key, value in state.items()}
    checkpoint['head.fc.weight'] = torch.zeros(10, 1280)
    torch.save(dict(state_dict=checkpoint), tmp_path / 'epoch.pth')
    assert tool.main([str(tmp_path / 'epoch.pth'), str(tmp_path / 'new' / 'detector.pth')]) == 0
    attention = sum('.attention.' in key for key in state)
    assert (attention > 0) is bool(convs)
    assert f'{len(state)} tensors, {attention} of them attention' in capsys.readouterr().out
    assert list((tmp_path / 'new').iterdir()) == [tmp_path / 'new' / 'detector.pth']
    ours = backbone('mmdet', convs, out_indices=(2, 7))
    ours.load_state_dict(torch.load(tmp_path / 'new' / 'detector.pth')['state_dict'], strict=True)
    ours.eval(), theirs.eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        for a, b in zip(ours(x), theirs(x), strict=True):
            assert torch.equal(a, b) and a.abs().max() > 0


@pytest.mark.parametrize(('state', 'message'), [
    ({'conv1.conv.weight': 0, 'layer1.0.linear_conv.conv.weight': 0}, "has mmdet's names already"),
    ({'stem.weight': 0}, 'no MobileNetV2 of mmpretrain or mmseg; it has stem.weight, ...'),
    ({}, 'it has no weights'),
    (None, 'there is no file'),
])
def test_something_else_is_refused(tool: ModuleType, state: dict | None, message: str,
                                   tmp_path: Path, capsys) -> None:
    if state is not None:
        torch.save(dict(state_dict=state), tmp_path / 'epoch.pth')
    assert tool.main([str(tmp_path / 'epoch.pth'), str(tmp_path / 'out.pth')]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / 'out.pth').exists()
