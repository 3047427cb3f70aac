"""MnasNet against torchvision's, and MobileNetV2 for small pictures."""

import pytest
import torch
from torch import nn

pytest.importorskip('mmpretrain')

from mmengine.registry import MODELS
from mmpretrain.models.backbones import MobileNetV2
from torchvision.models import mnasnet0_5, mnasnet0_75

import kronattn_mm.registry  # noqa: F401  (registers the scope)
from kronattn_mm.models.backbones.cifar_mobilenetv2 import CIFARMobileNetV2
from kronattn_mm.models.backbones.mnasnet import MnasNet, from_torchvision


@pytest.mark.parametrize(
    ('build', 'width', 'params'), [(mnasnet0_5, 0.5, 2_218_512), (mnasnet0_75, 0.75, 3_170_208)]
)
def test_equals_torchvision(build, width: float, params: int):
    theirs = build(weights=None)
    ours = MODELS.build(dict(type='kronattn_mm.MnasNet', widen_factor=width))
    assert sum(item.numel() for item in theirs.parameters()) == params
    for module in theirs.modules():  # statistics that are not those of a fresh network
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.2, 0.2)
    ours.load_state_dict(from_torchvision(theirs.state_dict()), strict=True)
    x = torch.randn(2, 3, 65, 96)
    theirs.eval()
    ours.eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(x)[0], theirs.layers(x))
    with pytest.raises(ValueError, match="'layers.0.weights.x' is no weight of a MnasNet"):
        from_torchvision({'layers.0.weights.x': torch.zeros(1)})


def test_outputs_freezing_and_checkpointing():
    net = MnasNet(0.35, out_indices=(1, 2, 4, 7), frozen_stages=2, norm_eval=True, with_cp=True)
    net.init_weights()
    net.train()
    outs = net(torch.randn(2, 3, 64, 64))
    assert [tuple(out.shape[1:]) for out in outs] == [
        (8, 16, 16),
        (16, 8, 8),
        (32, 4, 4),
        (1280, 2, 2),
    ]
    assert not any(
        module.training for module in net.modules() if isinstance(module, nn.BatchNorm2d)
    )
    plain = MnasNet(0.35, out_indices=(1, 2, 4, 7), frozen_stages=2, norm_eval=True)
    plain.load_state_dict(net.state_dict())
    plain.train()
    x = torch.randn(2, 3, 64, 64)
    for module in (net, plain):
        sum(out.square().mean() for out in module(x)).backward()
    for (name, one), other in zip(net.named_parameters(), plain.parameters(), strict=True):
        frozen = name.startswith(('conv1', 'layer1', 'layer2'))
        assert frozen == (one.grad is None), name
        if not frozen:
            torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (dict(widen_factor=0), 'widen_factor must be positive, got 0'),
        (dict(out_indices=(8,)), r'out_indices must be from 0 to 7, got \(8,\)'),
        (dict(frozen_stages=8), 'frozen_stages must be from -1 to 7, got 8'),
    ],
)
def test_mnasnet_refuses(arguments: dict, message: str):
    with pytest.raises(ValueError, match=message):
        MnasNet(**arguments)


def test_strides_of_small_pictures():
    """Weights are MobileNetV2's; only the sizes of the maps differ."""
    theirs = MobileNetV2(widen_factor=0.35, out_indices=range(8))
    ours = CIFARMobileNetV2(widen_factor=0.35, out_indices=range(8))
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(1, 3, 32, 32)
    ours.eval()
    assert [out.shape[-1] for out in ours(x)] == [32, 32, 16, 8, 8, 4, 4, 4]
    same = CIFARMobileNetV2(
        widen_factor=0.35, strides=(2, 1, 2, 2, 2, 1, 2, 1), out_indices=range(8)
    )
    same.load_state_dict(theirs.state_dict())
    same.eval()
    theirs.eval()
    for one, other in zip(same(x), theirs(x), strict=True):
        assert torch.equal(one, other)
    # The table is the class's own and stays as it was.
    assert MobileNetV2.arch_settings[1] == [6, 24, 2, 2]
    with pytest.raises(ValueError, match=r'eight numbers, each 1 or 2, got \(1, 3\)'):
        CIFARMobileNetV2(strides=(1, 3))
