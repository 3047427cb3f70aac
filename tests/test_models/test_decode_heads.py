"""The output layers for mmseg: against plain loops, through mmseg's losses, exported."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip('mmseg')

from mmengine.registry import init_default_scope
from mmengine.structures import PixelData
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

IN_CHANNELS, CHANNELS, CLASSES = 6, 8, 5

ATTENTIONS = {
    'regular block': dict(type='kronattn_mm.RegularAttention2d', key_channels=4, value_channels=4),
    'regular': dict(type='kronattn_mm.UnfoldedAttention2d', transforms='qkv'),
    'regular, pooled': dict(type='kronattn_mm.UnfoldedAttention2d', transforms='qkv', pooling=True),
    'KAO_KV': dict(type='kronattn_mm.KroneckerAttention2d', mode='kv', transforms='qkv'),
    'KAO_QKV': dict(type='kronattn_mm.KroneckerAttention2d', mode='qkv', transforms='qkv'),
    'KAO_QKV, normalised': dict(
        type='kronattn_mm.KroneckerAttention2d',
        mode='qkv',
        transforms='qkv',
        coefficient_norm='batch_norm',
    ),
    'efficient': dict(type='kronattn_mm.EfficientAttention2d', key_channels=4, value_channels=4),
}
HEADS = ['aspp', *ATTENTIONS]


def build_head(name: str, **changes) -> BaseDecodeHead:
    """Build a head as a segmenter does, by its scoped name from mmseg's registry."""
    init_default_scope('mmseg')
    config = dict(in_channels=IN_CHANNELS, num_classes=CLASSES)
    if name == 'aspp':
        config.update(type='kronattn_mm.DeepLabV2Head', dilations=(1, 2, 3))
    else:
        config.update(
            type='kronattn_mm.AttentionHead',
            channels=CHANNELS,
            norm_cfg=dict(type='BN'),
            attention=ATTENTIONS[name],
        )
    return MODELS.build({**config, **changes})


def make_active(head: nn.Module) -> nn.Module:
    """Give every parameter a usual size, so that nothing starts as zero or the identity."""
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(std=0.3)
    return head


def labels(height: int, width: int, batch: int = 2) -> list[SegDataSample]:
    samples = []
    for _ in range(batch):
        label = torch.randint(0, CLASSES, (1, height, width))
        label[:, :2] = 255
        samples.append(SegDataSample(gt_sem_seg=PixelData(data=label)))
    return samples


def dilated_convolution(
    image: np.ndarray, weight: np.ndarray, bias: np.ndarray, dilation: int
) -> np.ndarray:
    """A 3 x 3 convolution with zeros around the map, position by position in float64."""
    _, height, width = image.shape
    result = np.zeros((weight.shape[0], height, width))
    for row in range(height):
        for column in range(width):
            result[:, row, column] = bias
            for i in (-1, 0, 1):
                for j in (-1, 0, 1):
                    y, x = row + i * dilation, column + j * dilation
                    if 0 <= y < height and 0 <= x < width:
                        result[:, row, column] += weight[:, :, i + 1, j + 1] @ image[:, y, x]
    return result


@pytest.mark.parametrize('name', HEADS)
def test_every_parameter_gets_a_gradient_from_the_loss(name: str):
    head = make_active(build_head(name)).train()
    x = torch.randn(2, IN_CHANNELS, 9, 7, requires_grad=True)
    losses = head.loss([x], labels(18, 14), train_cfg=dict())
    assert set(losses) == {'loss_ce', 'acc_seg'}
    losses['loss_ce'].backward()
    assert x.grad.abs().max() > 0
    for parameter_name, parameter in head.named_parameters():
        assert parameter.grad is not None, f'{parameter_name} would stall DDP'
        # A constant on all keys leaves a softmax over positions as it is.
        if not parameter_name.endswith('keys.bias'):
            assert parameter.grad.abs().max() > 1e-9, parameter_name


@pytest.mark.parametrize('name', HEADS)
def test_scores_have_the_size_of_the_map(name: str):
    head = build_head(name).eval()
    for shape in ((9, 7), (1, 5), (1, 1)):
        for batch in (1, 3):
            assert head([torch.randn(batch, IN_CHANNELS, *shape)]).shape == (batch, CLASSES, *shape)


@pytest.mark.parametrize('name', HEADS)
def test_prediction_is_at_the_size_of_the_picture(name: str):
    head = build_head(name, align_corners=True).eval()
    meta = dict(img_shape=(33, 49))
    scores = head.predict([torch.randn(1, IN_CHANNELS, 5, 7)], [meta], test_cfg=dict())
    assert scores.shape == (1, CLASSES, 33, 49)


def test_deeplabv2_head_is_the_sum_of_dilated_classifiers():
    head = make_active(build_head('aspp', dilations=(1, 2, 4))).double()
    image = torch.randn(IN_CHANNELS, 6, 5, dtype=torch.float64)
    wanted = sum(
        dilated_convolution(
            image.numpy(), conv.weight.detach().numpy(), conv.bias.detach().numpy(), dilation
        )
        for conv, dilation in zip(head.classifiers, (1, 2, 4), strict=True)
    )
    with torch.no_grad():
        actual = head([image[None]])[0].numpy()
    np.testing.assert_allclose(actual, wanted, rtol=1e-12, atol=1e-12)


def test_deeplabv2_head_has_the_paper_rates_and_no_other_classifier():
    head = build_head('aspp', dilations=(6, 12, 18, 24), in_channels=16, num_classes=21)
    assert not hasattr(head, 'conv_seg')
    assert [name for name, _ in head.named_children() if name != 'loss_decode'] == ['classifiers']
    for conv, rate in zip(head.classifiers, (6, 12, 18, 24), strict=True):
        assert (conv.kernel_size, conv.dilation, conv.padding) == (
            (3, 3),
            (rate, rate),
            (rate, rate),
        )
    assert sum(item.numel() for item in head.parameters()) == 4 * (9 * 16 * 21 + 21)


def test_a_classifier_sees_as_far_as_its_dilation():
    head = make_active(build_head('aspp', dilations=(3,)))
    x = torch.randn(1, IN_CHANNELS, 9, 9, requires_grad=True)
    head([x])[0, :, 4, 4].sum().backward()
    seen = x.grad[0].abs().sum(0).nonzero()
    assert {tuple(position.tolist()) for position in seen} == {
        (row, column) for row in (1, 4, 7) for column in (1, 4, 7)
    }


@pytest.mark.parametrize('name', [name for name in ATTENTIONS if name != 'regular, pooled'])
def test_attention_starts_as_the_identity_and_then_sees_everything(name: str):
    head = build_head(name, kernel_size=1).eval()
    head.init_weights()
    x = torch.randn(1, IN_CHANNELS, 5, 6)
    with torch.no_grad():
        assert torch.equal(head([x]), head.conv_seg(head.bottleneck(x)))
    make_active(head)
    x.requires_grad_()
    head([x])[0, :, 0, 0].sum().backward()
    # Positions in another row and column reach it too; without attention nothing would.
    assert (x.grad[0].abs().sum(0) > 0).float().mean() > 0.9


def test_attention_head_is_convolution_attention_classifier():
    head = make_active(build_head('KAO_QKV')).eval()
    x = torch.randn(2, IN_CHANNELS, 5, 4)
    with torch.no_grad():
        hidden = torch.relu(head.bottleneck.bn(head.bottleneck.conv(x)))
        wanted = head.conv_seg(head.attention(hidden))
        torch.testing.assert_close(head([x]), wanted)
    assert head.bottleneck.conv.kernel_size == (3, 3)


def test_attention_head_without_convolution():
    head = build_head('KAO_KV', in_channels=CHANNELS, kernel_size=0)
    assert isinstance(head.bottleneck, nn.Identity)
    assert head([torch.randn(1, CHANNELS, 4, 5)]).shape == (1, CLASSES, 4, 5)


def test_in_index_picks_the_map():
    maps = [torch.randn(1, IN_CHANNELS, size, size) for size in (8, 4)]
    assert build_head('aspp').eval()(maps).shape[-1] == 4
    assert build_head('aspp', in_index=0).eval()(maps).shape[-1] == 8


def test_initialisation_of_the_classifiers():
    torch.manual_seed(1)
    head = build_head('aspp', in_channels=64, dilations=(1,))
    head.init_weights()
    assert 0.009 < float(head.classifiers[0].weight.detach().std()) < 0.011
    assert head.classifiers[0].bias.abs().max() == 0
    head = build_head('efficient', channels=256)
    head.init_weights()
    assert 0.009 < float(head.conv_seg.weight.detach().std()) < 0.011


def test_defaults_are_not_shared_between_heads():
    attention = dict(ATTENTIONS['KAO_KV'])
    before = copy.deepcopy(attention)
    build_head('KAO_KV', attention=attention)
    assert attention == before


@pytest.mark.parametrize(
    'name, changes, error, message',
    [
        ('aspp', dict(dilations=()), ValueError, 'at least one entry'),
        ('aspp', dict(dilations=(6, 0)), ValueError, 'each of dilations must be at least 1, got 0'),
        (
            'aspp',
            dict(dilations=(6, 1.5)),
            TypeError,
            'each of dilations must be an integer, got 1.5',
        ),
        ('aspp', dict(dilation=(6,)), TypeError, 'dilation'),
        ('KAO_KV', dict(kernel_size=4), ValueError, 'kernel_size must be odd, or 0 .*got 4'),
        ('KAO_KV', dict(kernel_size=-1), ValueError, 'kernel_size must be at least 1, got -1'),
        ('KAO_KV', dict(kernel_size=0), ValueError, 'in_channels=6 and channels=8'),
        (
            'KAO_KV',
            dict(attention=dict(type='kronattn_mm.KroneckerAttention2d', mode='vk')),
            ValueError,
            "mode must be one of 'kv', 'qkv', got 'vk'",
        ),
        (
            'KAO_KV',
            dict(attention=dict(type='kronattn_mm.KroneckerAttentoin2d')),
            ValueError,
            'KroneckerAttention2d',
        ),
        (
            'KAO_KV',
            dict(attention=dict(type='kronattn_mm.KroneckerAttention2d', in_channels=6)),
            ValueError,
            'channels=8, got in_channels=6',
        ),
        (
            'KAO_KV',
            dict(
                attention=dict(
                    type='kronattn_mm.KroneckerAttention2d', residual=False, out_channels=4
                )
            ),
            ValueError,
            'takes channels=8, but the attention gives out_channels=4',
        ),
    ],
)
def test_bad_arguments(name, changes, error, message):
    with pytest.raises(error, match=message):
        build_head(name, **changes)


@pytest.mark.parametrize('name', ['aspp', 'KAO_QKV'])
def test_a_bare_map_is_refused(name: str):
    # mmseg's MobileNetV2 with one out index gives one; its first picture would be taken for the
    # list's first map.
    with pytest.raises(TypeError, match='list of feature maps, got Tensor'):
        build_head(name, in_index=0)(torch.randn(2, IN_CHANNELS, 5, 5))


@pytest.mark.parametrize('name', ['aspp', 'KAO_KV'])
def test_wrong_channels_are_refused(name: str):
    with pytest.raises((ValueError, RuntimeError), match='channels'):
        build_head(name)([torch.randn(1, IN_CHANNELS + 1, 5, 5)])


class _Scores(nn.Module):
    """A head that takes a bare map, since exporters take tensors."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head([x])


@pytest.mark.parametrize('name', ['aspp', 'regular', 'KAO_KV', 'KAO_QKV'])
def test_torch_export_leaves_the_size_open(name: str):
    model = _Scores(make_active(build_head(name)).eval())
    axes = (
        {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC},
    )
    program = torch.export.export(model, (torch.randn(2, IN_CHANNELS, 9, 7),), dynamic_shapes=axes)
    for shape in ((9, 7), (12, 16)):
        x = torch.randn(3, IN_CHANNELS, *shape)
        torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['aspp', 'regular', 'KAO_KV', 'KAO_QKV', 'efficient'])
def test_onnx_leaves_the_size_open(name: str, tmp_path):
    runtime = pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    model = _Scores(make_active(build_head(name)).eval())
    file = tmp_path / 'head.onnx'
    dynamic = torch.export.Dim.DYNAMIC
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        torch.onnx.export(
            model,
            (torch.randn(2, IN_CHANNELS, 9, 7),),
            str(file),
            dynamo=True,
            verbose=False,
            dynamic_shapes=({0: dynamic, 2: dynamic, 3: dynamic},),
            input_names=['x'],
        )
    session = runtime.InferenceSession(str(file), providers=['CPUExecutionProvider'])
    for shape in ((9, 7), (12, 16)):
        x = torch.randn(3, IN_CHANNELS, *shape)
        (actual,) = session.run(None, {'x': x.numpy()})
        with torch.no_grad():
            np.testing.assert_allclose(actual, model(x).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', ['regular', 'KAO_QKV'])
def test_weights_do_not_depend_on_the_size(name: str):
    """Nothing in a head depends on the size that it was first used on."""
    first, second = make_active(build_head(name)).eval(), build_head(name).eval()
    first([torch.randn(1, IN_CHANNELS, 9, 7)])
    second.load_state_dict(first.state_dict())
    x = torch.randn(1, IN_CHANNELS, 4, 11)
    assert torch.equal(first([x]), second([x]))
