"""Every promise that an insertion makes, for the backbones, necks and heads that people have."""

import copy
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.registry import MODELS
from torch import nn

import kronattn_mm.registry  # noqa: F401  (registers the scope)
from kronattn_mm.plugging import inserted_layers

EA = dict(type='kronattn_mm.EfficientAttention2d', key_channels=8, value_channels=8)


def image(height: int = 64, width: int = 96) -> torch.Tensor:
    return torch.randn(2, 3, height, width)


def pyramid(*channels: int) -> Callable[[int, int], list[torch.Tensor]]:
    def make(height: int = 32, width: int = 48) -> list[torch.Tensor]:
        return [torch.randn(2, c, height >> i, width >> i) for i, c in enumerate(channels)]

    return make


@dataclass
class Case:
    """One base, what is inserted into it and an input for it."""

    base: str
    at: str
    points: list[str]
    arguments: dict[str, Any] = field(default_factory=dict)
    inputs: Callable[..., Any] = image
    sizes: tuple[tuple[int, int], ...] = ((64, 96), (96, 64), (80, 112))
    # How many of the sizes an exported graph is tried with.
    exported_sizes: int = 3
    # Why the base is not compiled and exported, if it is not.
    untraced: str = ''
    # Why it is not exported to ONNX, if it is not.
    no_onnx: str = ''

    def plain(self) -> nn.Module:
        pytest.importorskip(self.base.split('.')[0])
        return self._initialised(dict(type=self.base, **self.arguments))

    def plugged(self, **layer: Any) -> nn.Module:
        pytest.importorskip(self.base.split('.')[0])
        return self._initialised(
            dict(
                type='kronattn_mm.Plugged',
                base=self.base,
                insert=[dict(at=self.at, layer={**EA, **layer})],
                **self.arguments,
            )
        )

    def _initialised(self, config: dict[str, Any]) -> nn.Module:
        module = MODELS.build(config)
        if self.base == 'mmdet.SSDNeck':  # its L2Norm holds unset memory before this
            module.init_weights()
            module._is_init = False
        return module

    def active(self) -> nn.Module:
        """Build it with inserted layers that do something."""
        module = self.plugged(zero_init=False)
        with torch.no_grad():
            for insertion in inserted_layers(module).values():
                for parameter in insertion.layer.parameters():
                    parameter.normal_(std=0.1)
        return module


RES = [f'res{i}' for i in range(1, 5)]
FPN = [f'fpn{i}' for i in range(1, 6)]
SMALL_PYRAMID = (64, 128, 256, 512)
CASES = {
    'resnet18': Case('mmdet.ResNet', 'res1-4', RES, dict(depth=18)),
    'resnet50': Case(
        'mmdet.ResNet', 'res3-4', RES[2:], dict(depth=50, frozen_stages=1, norm_eval=True)
    ),
    'resnext50': Case('mmdet.ResNeXt', 'res3-4', RES[2:], dict(depth=50, groups=32, base_width=4)),
    'mobilenetv2': Case(
        'mmdet.MobileNetV2',
        'layer3-5+layer7.0',
        ['layer3', 'layer4', 'layer5', 'layer7.0'],
        dict(widen_factor=0.5),
    ),
    'ssdvgg': Case(
        'mmdet.SSDVGG',
        'features.22+out1',
        ['features.22', 'out1'],
        dict(depth=16, ceil_mode=True, out_indices=(3, 4), out_feature_indices=(22, 34)),
    ),
    'swin': Case(
        'mmdet.SwinTransformer',
        'out1-3',
        ['out1', 'out2', 'out3'],
        dict(embed_dims=24, depths=(1, 1, 1, 1), num_heads=(1, 2, 3, 4)),
        # Swin pads maps that are no multiples of its window, stage by stage, and an exported graph
        # holds to what the first size needed.
        exported_sizes=1,
        no_onnx='exporting it to ONNX takes minutes; compiled and exported by torch it is',
    ),
    'convnext': Case(
        'mmpretrain.ConvNeXt',
        'stages.1-2+out3',
        ['stages.1', 'stages.2', 'out3'],
        dict(
            arch=dict(depths=[1, 1, 1, 1], channels=[16, 32, 48, 64]),
            out_indices=[0, 1, 2, 3],
            gap_before_final_norm=False,
        ),
    ),
    'pvt': Case(
        'mmdet.PyramidVisionTransformer',
        'out0+out3',
        ['out0', 'out3'],
        dict(embed_dims=16, num_layers=[1, 1, 1, 1], pretrain_img_size=64),
        untraced='tracing it takes minutes; it is here for its init_weights',
    ),
    'fpn': Case(
        'mmdet.FPN',
        'fpn1-5',
        FPN,
        dict(
            in_channels=list(SMALL_PYRAMID), out_channels=32, num_outs=5, add_extra_convs='on_input'
        ),
        pyramid(*SMALL_PYRAMID),
        ((32, 48), (48, 32), (40, 56)),
    ),
    'pafpn': Case(
        'mmdet.PAFPN',
        'fpn1-5',
        FPN,
        dict(in_channels=list(SMALL_PYRAMID), out_channels=32, num_outs=5),
        pyramid(*SMALL_PYRAMID),
        ((32, 48), (48, 32), (48, 64)),
    ),
    'ssdneck': Case(
        'mmdet.SSDNeck',
        'fpn1-6',
        [*FPN, 'fpn6'],
        dict(
            in_channels=(512, 1024),
            out_channels=(512, 1024, 512, 256, 256, 256),
            level_strides=(2, 2, 1, 1),
            level_paddings=(1, 1, 0, 0),
            l2_norm_scale=20,
        ),
        pyramid(512, 1024),
        ((56, 56), (64, 64), (60, 72)),
    ),
    'mmseg_backbone': Case(
        'mmseg.ResNetV1c',
        'res2+res4',
        ['res2', 'res4'],
        dict(depth=18, strides=(1, 2, 1, 1), dilations=(1, 1, 2, 4)),
    ),
    'mmseg_head': Case(
        'mmseg.FCNHead',
        'convs.0',
        ['convs.0'],
        dict(in_channels=32, in_index=1, channels=16, num_classes=5, norm_cfg=dict(type='BN')),
        pyramid(16, 32),
        ((32, 48), (48, 32), (40, 56)),
    ),
    'mask_head': Case(
        'mmdet.FCNMaskHead',
        'convs.1+upsample',
        ['convs.1', 'upsample'],
        dict(in_channels=16, num_convs=2, conv_out_channels=16, num_classes=4),
        lambda height=14, width=14: torch.randn(3, 16, height, width),
        ((14, 14), (14, 18)),
    ),
}
each_case = pytest.mark.parametrize('case', CASES.values(), ids=list(CASES))


def tensors(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    return [tensor for part in output for tensor in tensors(part)]


def same(left: Any, right: Any) -> bool:
    pairs = list(zip(tensors(left), tensors(right), strict=True))
    return all(torch.equal(a, b) for a, b in pairs)


@each_case
def test_points_and_keys(case):
    plain, module = case.plain(), case.plugged()
    assert type(module) is type(plain), 'the same class as without us'
    assert [insertion.point for insertion in inserted_layers(module).values()] == case.points
    result = module.load_state_dict(plain.state_dict(), strict=False)
    assert not result.unexpected_keys
    assert result.missing_keys
    assert all(key.startswith('attention.') for key in result.missing_keys)
    keys = [key for key in module.state_dict() if not key.startswith('attention.')]
    assert keys == list(plain.state_dict())


@each_case
def test_bit_equal_at_init(case):
    plain, module = case.plain(), case.plugged()
    module.load_state_dict(plain.state_dict(), strict=False)
    x = case.inputs(*case.sizes[0])
    for training in (False, True):  # .train() of some backbones returns None
        plain.train(training), module.train(training)
        torch.manual_seed(1)
        wanted = plain(x)
        torch.manual_seed(1)
        assert same(module(x), wanted)


@each_case
def test_init_survives_the_parents(case):
    """The parent initialises everything inside it; zero stays zero, the rest stays our own."""
    module = case.plugged()
    fixed = dict(type='Constant', val=7.0, layer=['Conv2d', 'Linear'])
    if case.base not in ('mmdet.SwinTransformer', 'mmdet.PyramidVisionTransformer'):  # take none
        module.init_cfg = fixed
    module.init_weights()
    for insertion in inserted_layers(module).values():
        layer = insertion.layer
        assert layer.reprojection.weight.abs().max() == 0
        assert layer.reprojection.bias.abs().max() == 0
        assert 0 < layer.keys.weight.abs().max() < 1
        assert layer.keys.weight.std() > 0


@each_case
def test_active_layers_change_the_output(case):
    plain, module = case.plain(), case.active()
    module.load_state_dict(plain.state_dict(), strict=False)
    plain.eval(), module.eval()
    x = case.inputs(*case.sizes[0])
    assert not same(module(x), plain(x))


@each_case
def test_every_parameter_gets_a_gradient(case):
    module = case.active()
    module.train()
    outputs = tensors(module(case.inputs(*case.sizes[0])))
    sum((output * torch.randn_like(output)).sum() for output in outputs).backward()
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
        else:
            assert not name.startswith('attention.'), f'{name} is frozen'
    for name, parameter in module.attention.named_parameters():
        if not name.endswith('keys.bias'):  # cancels in the softmax over the positions
            assert parameter.grad.abs().max() > 0, name


@each_case
def test_copies_are_independent(case):
    module = case.active()
    module.eval()
    x = case.inputs(*case.sizes[0])
    with torch.no_grad():
        before = module(x)
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert same(other(x), before)
            for parameter in other.attention.parameters():
                parameter.zero_()
            assert not same(other(x), before), 'the copy uses its own layers'
            assert same(module(x), before), 'the original does not notice'


def close(actual: Any, wanted: Any) -> None:
    for a, b in zip(tensors(actual), tensors(wanted), strict=True):
        scale = max(float(b.abs().max()), 1.0)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.slow
@each_case
def test_compile_fullgraph(case):
    if case.untraced:
        pytest.skip(case.untraced)
    module = case.active()
    module.eval()
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend='aot_eager')
    with torch.no_grad():
        for size in case.sizes[:2]:
            x = case.inputs(*size)
            close(compiled(x), module(x))


def dynamic_shapes(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return {2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}
    return [dynamic_shapes(part) for part in x]


@pytest.mark.slow
@each_case
def test_export(case):
    if case.untraced:
        pytest.skip(case.untraced)
    module = case.active()
    module.eval()
    x = case.inputs(*case.sizes[0])
    program = torch.export.export(module, (x,), dynamic_shapes=(dynamic_shapes(x),))
    with torch.no_grad():
        for size in case.sizes[: case.exported_sizes]:
            x = case.inputs(*size)
            close(program.module()(x), module(x))


@pytest.mark.slow
@each_case
def test_onnx_with_dynamic_sizes(case, tmp_path):
    runtime = pytest.importorskip('onnxruntime')
    if case.untraced or case.no_onnx:
        pytest.skip(case.untraced or case.no_onnx)
    module = case.active()
    module.eval()
    x = case.inputs(*case.sizes[0])
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        torch.onnx.export(
            module,
            (x,),
            str(tmp_path / 'model.onnx'),
            dynamo=True,
            verbose=False,
            dynamic_shapes=(dynamic_shapes(x),),
        )
    session = runtime.InferenceSession(
        str(tmp_path / 'model.onnx'), providers=['CPUExecutionProvider']
    )
    for size in case.sizes:
        x = case.inputs(*size)
        # An output that no input reaches is dropped from the graph's inputs by the exporter.
        names = [node.name for node in session.get_inputs()]
        given = dict(zip(names, (tensor.numpy() for tensor in tensors(x)), strict=False))
        if len(names) < len(tensors(x)):
            given = {names[-1]: tensors(x)[-1].numpy()}
        with torch.no_grad():
            wanted = tensors(module(x))
        for actual, tensor in zip(session.run(None, given), wanted, strict=True):
            scale = max(float(tensor.abs().max()), 1.0)
            np.testing.assert_allclose(actual, tensor.numpy(), rtol=1e-3, atol=1e-4 * scale)
