"""KANet: counts of the paper, and what the libraries' backbones promise."""

import copy
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

pytest.importorskip('mmcv')

from mmengine.config import ConfigDict
from mmengine.registry import MODELS, init_default_scope

import kronattn_mm.registry  # noqa: F401  (registers the scope)
from kronattn_mm.models.backbones.kanet import ARCHS, KAO_KV, KANet, make_divisible

REGULAR = dict(
    type='kronattn_mm.UnfoldedAttention2d',
    transforms='v',
    residual=False,
    coefficient_norm='batch_norm',
)
VARIANTS = {
    'KANet_KV': dict(),
    'KANet_QKV': dict(attention=dict(KAO_KV, mode='qkv')),
    'AttnNet': dict(attention=REGULAR),
    'AttnNet+Pool': dict(attention=dict(REGULAR, pooling=True)),
    'MobileNetV2+KAO': dict(arch='mobilenetv2_kao'),
    'KANet without KAO': dict(arch='kanet_without_kao'),
    'MobileNetV2': dict(arch='mobilenetv2'),
}
# All four modules, both strides, attention at stride 2 too; cheap enough to train in a test.
SMALL = [
    (1, 8, 1, ('base',)),
    (2, 8, 2, ('base_skip', 'attn_skip')),
    (3, 16, 2, ('attn', 'attn_skip')),
]


def small(**arguments) -> KANet:
    return KANet(**{'arch': SMALL, 'out_indices': (1, 2, 3), **arguments})


def weights_of(model: KANet, features: torch.Tensor) -> torch.Tensor:
    """One number that depends on every value of every output."""
    return sum(
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum() for out in model(features)
    )


def norms(module: nn.Module) -> Iterator[_BatchNorm]:
    return (part for part in module.modules() if isinstance(part, _BatchNorm))


# -- the paper ---------------------------------------------------------------------------------


def classifier(variant: str) -> nn.Module:
    with torch.device('meta'):
        return nn.ModuleList([KANet(**VARIANTS[variant]), nn.Linear(1280, 1000)]).eval()


def parameters(variant: str) -> int:
    """Parameters with the classifier of 1000 classes, without those of batch norm."""
    model = classifier(variant)
    return sum(p.numel() for p in model.parameters()) - sum(
        p.numel() for norm in norms(model) for p in norm.parameters()
    )


def multiply_adds(variant: str) -> int:
    backbone, fc = classifier(variant)
    with FlopCounterMode(display=False) as counter:
        (out,) = backbone(torch.zeros(1, 3, 224, 224, device='meta'))
        fc(out.mean((2, 3)))
    return counter.get_total_flops() // 2


def test_parameters() -> None:
    counts = {variant: parameters(variant) for variant in VARIANTS}
    assert counts['MobileNetV2'] == 3_470_760
    assert round(counts['KANet_KV'] / 1e6, 2) == 3.44
    # "Our KANets ... with 0.03 million fewer parameters"
    assert round((counts['MobileNetV2'] - counts['KANet_KV']) / 1e6, 2) == 0.03
    # "Note that all these models have the same number of parameters."
    assert counts['KANet_KV'] == counts['KANet_QKV'] == counts['AttnNet'] == counts['AttnNet+Pool']
    # "MobileNetV2+KAO ... with fewer parameters than MobileNetV2"
    assert counts['MobileNetV2+KAO'] < counts['MobileNetV2']
    # "KANet w/o KAO has more parameters than KANet_KV"
    assert counts['KANet without KAO'] > counts['KANet_KV']


def test_multiply_adds() -> None:
    counts = {variant: multiply_adds(variant) for variant in VARIANTS}
    rounded = {variant: round(count / 1e6) for variant, count in counts.items()}
    assert rounded['MobileNetV2'] == 301
    assert rounded['KANet_KV'] == 288
    assert rounded['KANet_QKV'] == 281
    assert rounded['AttnNet'] == 383
    assert rounded['KANet_KV'] < rounded['AttnNet+Pool'] < rounded['AttnNet']
    assert rounded['KANet_KV'] < rounded['MobileNetV2'] <= rounded['MobileNetV2+KAO']
    # Said in docs/kanet.md: the paper's comparison of these two is not met.
    assert rounded['KANet without KAO'] == rounded['KANet_KV']


def test_attention_sees_28_14_and_7_only() -> None:
    model = KANet().to('meta').eval()
    seen = []
    for module in model.modules():
        if hasattr(module, 'attention'):
            module.attention.register_forward_hook(
                lambda layer, inputs, out: seen.append(inputs[0].shape[1:])
            )
    model(torch.zeros(1, 3, 224, 224, device='meta'))
    assert seen == [(32, 28, 28)] * 2 + [(96, 14, 14)] * 2 + [(160, 7, 7)] * 3


def test_channels_are_rounded_as_in_mobilenetv2() -> None:
    assert [make_divisible(c * 0.75) for c in (32, 16, 24, 32, 64, 96, 160, 320)] == [
        24,
        16,
        24,
        24,
        48,
        72,
        120,
        240,
    ]
    assert [make_divisible(c * 0.35) for c in (32, 16, 24, 32, 64, 96, 160, 320)] == [
        16,
        8,
        8,
        16,
        24,
        32,
        56,
        112,
    ]


def test_xavier_initialisation() -> None:
    model = KANet()
    model.init_weights()
    for name, module in model.named_modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d)):
            weight = module.weight
            fan_in = weight[0].numel()
            fan_out = weight.shape[0] * weight[0][0].numel()
            bound = (6 / (fan_in + fan_out)) ** 0.5
            assert 0.6 * bound < weight.abs().max() <= bound, name
            assert module.bias is None or not module.bias.any(), name
    assert all(torch.equal(norm.weight, torch.ones_like(norm.weight)) for norm in norms(model))


# -- outputs -------------------------------------------------------------------------------------


def test_outputs_have_the_shapes_of_mobilenetv2() -> None:
    mmdet = pytest.importorskip('mmdet.models.backbones')
    ours = KANet(out_indices=range(8)).to('meta').eval()
    theirs = mmdet.MobileNetV2(out_indices=tuple(range(8))).to('meta')
    theirs.eval()  # returns None
    for shape in ((224, 224), (97, 33), (1, 1)):
        x = torch.zeros(2, 3, *shape, device='meta')
        assert [out.shape for out in ours(x)] == [out.shape for out in theirs(x)], shape


def test_out_indices_choose_among_the_same_maps() -> None:
    model = small(out_indices=(0, 1, 2, 3)).eval()
    x = torch.randn(1, 3, 33, 20)
    everything = model(x)
    for chosen in ((3,), (0, 2), (1, 3)):
        model.out_indices = chosen
        assert all(torch.equal(a, everything[i]) for a, i in zip(model(x), chosen, strict=True)), (
            chosen
        )


@pytest.mark.parametrize('variant', VARIANTS)
def test_every_parameter_gets_a_gradient(variant: str) -> None:
    model = KANet(**VARIANTS[variant], widen_factor=0.25, out_indices=(2, 4, 7))
    model.init_weights()
    for module in model.modules():  # away from zero, where a bias may have no gradient
        if getattr(module, 'bias', None) is not None:
            nn.init.normal_(module.bias, std=0.1)
    weights_of(model, torch.randn(2, 3, 96, 64)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        # A constant added to all coefficients changes no softmax.
        if not name.endswith('coefficient_norm.bias'):
            assert parameter.grad.abs().max() > 0, name


# -- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize('frozen', [-1, 0, 1, 2, 3])
def test_frozen_stages_stay_as_they_are(frozen: int) -> None:
    model = small(frozen_stages=frozen)
    assert model.train() is model
    fixed = ['conv1', *(f'layer{i}' for i in range(1, frozen + 1))] if frozen >= 0 else []
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    weights_of(model, torch.randn(2, 3, 32, 32)).backward()
    optimizer.step()
    for name, value in model.state_dict().items():
        part = name.split('.')[0]
        if part in fixed:
            assert torch.equal(value, before[name]), name
        elif 'running' in name or name.endswith('conv.weight'):
            if part != 'conv2':  # not among the outputs
                assert not torch.equal(value, before[name]), name


def test_norm_eval_keeps_statistics_and_trains_the_rest() -> None:
    model = small(norm_eval=True)
    assert model.train() is model and model.training
    assert not any(norm.training for norm in norms(model))
    before = {name: value.clone() for name, value in model.named_buffers()}
    weights_of(model, torch.randn(2, 3, 32, 32)).backward()
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert all(p.grad is not None for n, p in model.named_parameters() if 'conv2' not in n)
    assert not any(module.training for module in model.eval().modules())


def test_recomputing_gives_the_same_gradients() -> None:
    model = small()
    other = small(with_cp=True)
    other.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 33, 24)
    for each in (model, other):
        weights_of(each, x).backward()
    for (name, parameter), twin in zip(model.named_parameters(), other.parameters(), strict=True):
        if 'conv2' not in name:
            torch.testing.assert_close(twin.grad, parameter.grad, msg=name)


def test_copies_are_independent() -> None:
    model = small().eval()
    x = torch.randn(1, 3, 32, 32)
    wanted = model(x)
    other = copy.deepcopy(model)
    assert all(torch.equal(a, b) for a, b in zip(other(x), wanted, strict=True))
    for parameter in other.parameters():
        parameter.data.zero_()
    assert all(torch.equal(a, b) for a, b in zip(model(x), wanted, strict=True))


@pytest.mark.parametrize('mode', ['kv', 'qkv'])
def test_autocast(mode: str) -> None:
    model = small(attention=dict(KAO_KV, mode=mode))
    x = torch.randn(2, 3, 32, 48)
    wanted = model(x)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        actual = model(x)
        loss = sum(out.float().mean() for out in actual)
    loss.backward()
    for a, b in zip(actual, wanted, strict=True):
        assert (a.float() - b).norm() < 0.1 * b.norm()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize('mode', ['kv', 'qkv'])
def test_tools_that_rebuild_norms_keep_the_result(mode: str) -> None:
    """Fusing convolutions and norms, and converting norms for several GPUs and back."""
    from mmcv.cnn.utils import fuse_conv_bn
    from mmengine.model import convert_sync_batchnorm, revert_sync_batchnorm

    model = small(attention=dict(KAO_KV, mode=mode))
    for _ in range(3):  # statistics and norms that are not those of the start
        model(torch.randn(4, 3, 32, 32))
    for norm in norms(model):
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.normal_(norm.bias)
    model.eval()
    x = torch.randn(2, 3, 33, 48)
    wanted = model(x)
    synced = convert_sync_batchnorm(copy.deepcopy(model))
    assert not any(isinstance(part, nn.BatchNorm2d) for part in synced.modules())
    for other in (fuse_conv_bn(copy.deepcopy(model)), revert_sync_batchnorm(synced)):
        for actual, each in zip(other.eval()(x), wanted, strict=True):
            torch.testing.assert_close(actual, each, rtol=1e-3, atol=1e-4)


# -- weights -------------------------------------------------------------------------------------


def test_pretrained_and_init_cfg_load_a_checkpoint(tmp_path: Path) -> None:
    model = small()
    file = str(tmp_path / 'kanet.pth')
    torch.save(dict(state_dict=model.state_dict()), file)
    for arguments in (
        dict(pretrained=file),
        dict(init_cfg=dict(type='Pretrained', checkpoint=file)),
    ):
        other = small(**arguments)
        other.init_weights()
        assert all(
            torch.equal(value, other.state_dict()[name])
            for name, value in model.state_dict().items()
        )
    with pytest.raises(ValueError, match='init_cfg and pretrained cannot both be given'):
        small(pretrained=file, init_cfg=dict(type='Pretrained', checkpoint=file))


def test_mobilenetv2_is_mmdets() -> None:
    mmdet = pytest.importorskip('mmdet.models.backbones')
    theirs = mmdet.MobileNetV2(out_indices=(2, 7), widen_factor=0.5)
    theirs.eval()
    ours = KANet('mobilenetv2', out_indices=(2, 7), widen_factor=0.5).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(1, 3, 65, 48)
    assert all(torch.equal(a, b) for a, b in zip(ours(x), theirs(x), strict=True))


def test_real_mobilenetv2_weights_load_exactly(shared: Path) -> None:
    mmdet = pytest.importorskip('mmdet.models.backbones')
    file = shared / 'weights' / 'mobilenet_v2_1.0_imagenet_mmdet.pth'
    init_cfg = dict(type='Pretrained', checkpoint=str(file))
    ours = KANet('mobilenetv2', init_cfg=init_cfg)
    theirs = mmdet.MobileNetV2(out_indices=(7,), init_cfg=init_cfg)
    for model in (ours, theirs):
        model.init_weights()
        model.eval()
    x = torch.randn(1, 3, 64, 96)
    assert torch.equal(ours(x)[0], theirs(x)[0])


def test_what_kanet_shares_with_mobilenetv2() -> None:
    """The stem, the first block and the last convolution; every other module differs in width."""
    ours, base = KANet().state_dict(), KANet('mobilenetv2').state_dict()
    differing = {
        name.split('.')[0]
        for name, value in base.items()
        if name not in ours or ours[name].shape != value.shape
    }
    assert differing == {f'layer{i}' for i in range(2, 8)}


# -- the libraries -------------------------------------------------------------------------------


def test_in_an_image_classifier() -> None:
    pytest.importorskip('mmpretrain')
    from mmpretrain.structures import DataSample

    init_default_scope('mmpretrain')
    model = MODELS.build(
        dict(
            type='ImageClassifier',
            backbone=dict(type='kronattn_mm.KANet', arch=SMALL),
            neck=dict(type='GlobalAveragePooling'),
            head=dict(type='kronattn_mm.DropoutLinearClsHead', num_classes=3, in_channels=1280),
        )
    )
    model.init_weights()
    samples = [DataSample().set_gt_label(i) for i in (0, 2)]
    x = torch.randn(2, 3, 32, 40)
    losses = model(x, samples, mode='loss')
    losses['loss'].backward()
    assert torch.isfinite(losses['loss'])
    with torch.no_grad():
        predicted = model.eval()(x, samples, mode='predict')
    scores = [sample.pred_score for sample in predicted]
    assert all(score.sum() == pytest.approx(1, abs=1e-5) for score in scores)


def test_in_a_detector() -> None:
    pytest.importorskip('mmdet')
    from mmdet.testing import demo_mm_inputs

    init_default_scope('mmdet')
    model = MODELS.build(
        ConfigDict(
            type='RetinaNet',
            data_preprocessor=dict(type='DetDataPreprocessor', pad_size_divisor=32),
            backbone=dict(type='kronattn_mm.KANet', arch=SMALL, out_indices=(1, 2, 3)),
            neck=dict(type='FPN', in_channels=[8, 16, 1280], out_channels=8, num_outs=3),
            bbox_head=dict(
                type='RetinaHead',
                num_classes=2,
                in_channels=8,
                feat_channels=8,
                stacked_convs=1,
                anchor_generator=dict(
                    type='AnchorGenerator',
                    octave_base_scale=4,
                    scales_per_octave=1,
                    ratios=[1.0],
                    strides=[4, 8, 8],
                ),
            ),
            train_cfg=dict(
                assigner=dict(
                    type='MaxIoUAssigner',
                    pos_iou_thr=0.5,
                    neg_iou_thr=0.4,
                    min_pos_iou=0,
                    ignore_iof_thr=-1,
                ),
                sampler=dict(type='PseudoSampler'),
                allowed_border=-1,
                pos_weight=-1,
            ),
            test_cfg=dict(
                nms_pre=100, score_thr=0.05, nms=dict(type='nms', iou_threshold=0.5), max_per_img=10
            ),
        )
    )
    data = model.data_preprocessor(demo_mm_inputs(2, [(3, 64, 48)] * 2, num_classes=2), True)
    loss, _ = model.parse_losses(model(**data, mode='loss'))
    loss.backward()
    assert torch.isfinite(loss)
    with torch.no_grad():
        assert len(model.eval()(**data, mode='predict')) == 2


def test_in_a_segmenter_which_passes_pretrained(tmp_path: Path) -> None:
    pytest.importorskip('mmseg')
    import mmseg.models  # noqa: F401

    init_default_scope('mmseg')
    trained = small()
    torch.save(dict(state_dict=trained.state_dict()), tmp_path / 'kanet.pth')
    model = MODELS.build(
        ConfigDict(
            type='EncoderDecoder',
            pretrained=str(tmp_path / 'kanet.pth'),
            backbone=dict(type='kronattn_mm.KANet', arch=SMALL, out_indices=(1, 2, 3)),
            decode_head=dict(
                type='FCNHead',
                in_channels=16,
                in_index=1,
                channels=8,
                num_convs=1,
                num_classes=4,
                align_corners=False,
                loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False),
            ),
        )
    )
    model.init_weights()
    assert torch.equal(model.backbone.conv1.conv.weight, trained.conv1.conv.weight)
    with torch.no_grad():
        assert model.eval()(torch.randn(1, 3, 32, 48)).shape == (1, 4, 4, 6)


# -- compilers -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_compile_fullgraph() -> None:
    model = small().eval()
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager', dynamic=True)
    for shape in ((32, 48), (40, 33)):
        x = torch.randn(2, 3, *shape)
        for actual, wanted in zip(compiled(x), model(x), strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)
    torch.compiler.reset()


@pytest.mark.slow
def test_export_with_dynamic_sizes() -> None:
    model = small().eval()
    sizes = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    program = torch.export.export(model, (torch.randn(2, 3, 32, 48),), dynamic_shapes=(sizes,))
    for shape in ((2, 3, 32, 48), (3, 3, 40, 33)):
        x = torch.randn(*shape)
        for actual, wanted in zip(program.module()(x), model(x), strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('mode', ['kv', 'qkv'])
def test_onnx_with_dynamic_sizes(tmp_path: Path, mode: str) -> None:
    runtime = pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    model = small(attention=dict(KAO_KV, mode=mode)).eval()
    file = tmp_path / 'kanet.onnx'
    sizes = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        torch.onnx.export(
            model,
            (torch.randn(2, 3, 32, 48),),
            str(file),
            dynamo=True,
            verbose=False,
            dynamic_shapes=(sizes,),
            input_names=['x'],
        )
    session = runtime.InferenceSession(str(file), providers=['CPUExecutionProvider'])
    for shape in ((2, 3, 32, 48), (3, 3, 40, 33), (1, 3, 37, 50)):
        x = torch.randn(*shape)
        with torch.no_grad():
            wanted = model(x)
        for actual, each in zip(
            session.run(None, {session.get_inputs()[0].name: x.numpy()}), wanted, strict=True
        ):
            np.testing.assert_allclose(
                actual, each.numpy(), rtol=1e-3, atol=1e-4, err_msg=str(shape)
            )


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('arguments', 'error', 'message'),
    [
        (
            dict(arch='kanet_v2'),
            ValueError,
            f"arch must be one of {', '.join(map(repr, ARCHS))} or a table, got 'kanet_v2'",
        ),
        (dict(arch=7), TypeError, 'arch must be the name of a table or a sequence of rows, got 7'),
        (dict(arch=[]), TypeError, 'sequence of rows, got []'),
        (dict(arch=[(1, 8, 1)]), TypeError, 'got (1, 8, 1)'),
        (
            dict(arch=[(1, 8, 1, 'base')]),
            TypeError,
            'modules being a tuple of names, got (1, 8, 1, ',
        ),
        (dict(arch=[8]), TypeError, 'a row of arch is (expansion, channels, stride, modules)'),
        (
            dict(arch=[(1, 8, 1, ('bass',))]),
            ValueError,
            "modules are 'base', 'base_skip', 'attn', 'attn_skip', got 'bass'",
        ),
        (dict(arch=[(6, 8, 3, ('base',))]), ValueError, 'stride must be 1 or 2, got 3'),
        (dict(out_indices=(8,)), ValueError, 'out_indices must be among 0 to 7, got (8,)'),
        (dict(out_indices=()), ValueError, 'out_indices must be among 0 to 7, got ()'),
        (dict(out_indices=7), TypeError, 'out_indices must be a sequence such as (7, ), got 7'),
        (dict(frozen_stages=8), ValueError, 'frozen_stages must be from -1 to 7, got 8'),
        (dict(widen_factor=0), ValueError, 'widen_factor must be a number above 0, got 0'),
        (
            dict(attention=dict(type='kronattn_mm.KroneckerAttention2d', mode='vk')),
            ValueError,
            "mode must be one of 'kv', 'qkv', got 'vk'",
        ),
        (dict(atention=None), TypeError, 'atention'),
    ],
)
def test_bad_arguments(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        KANet(**arguments)
