"""Non-local blocks of mmcv, mmdet and mmseg, and efficient attention made of them."""

from pathlib import Path

import mmcv.cnn.bricks.non_local as bricks
import pytest
import torch
from converted import assert_same, inferring, load, trained
from torch import Tensor, nn

from kronattn_mm import layers
from kronattn_mm.converters import ConversionError
from kronattn_mm.converters.non_local import Settings, from_attention, place_of, to_attention
from kronattn_mm.cost.config import load_model

SIZES = {1: (30,), 2: (6, 10), 3: (2, 4, 6)}


def block_and_input(dims: int, **arguments) -> tuple[nn.Module, Tensor]:
    block = trained(getattr(bricks, f'NonLocal{dims}d')(in_channels=12, **arguments))
    return block, torch.randn(2, 12, *SIZES[dims])


def layer_like(name: str, weights: dict[str, Tensor], **arguments) -> nn.Module:
    d_k, d = weights['keys.weight'].shape[:2]
    layer = getattr(layers, name)(d, d_k, weights['values.weight'].shape[0], **arguments)
    layer.load_state_dict(weights)
    return layer.eval()


@pytest.mark.parametrize('use_scale', [True, False])
@pytest.mark.parametrize('dims', [1, 2, 3])
def test_dot_product_is_efficient_attention_to_float_precision(dims: int, use_scale: bool) -> None:
    block, x = block_and_input(dims, mode='dot_product', use_scale=use_scale)
    weights = to_attention(block.state_dict(), Settings('dot_product', use_scale))
    layer = layer_like(f'EfficientAttention{dims}d', weights, normalization='scaling')
    torch.testing.assert_close(layer(x), block(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        layer.double()(x.double()), block.double()(x.double()), rtol=1e-12, atol=1e-12
    )
    assert_same(
        from_attention(weights, Settings('dot_product', use_scale)), block.float().state_dict()
    )


@pytest.mark.parametrize(
    'arguments',
    [
        dict(use_scale=True),
        dict(use_scale=False),
        dict(reduction=1),
        dict(sub_sample=True),
        dict(norm_cfg=dict(type='BN', eps=1e-3)),
    ],
)
def test_embedded_gaussian_is_regular_attention_exactly(arguments: dict) -> None:
    block, x = block_and_input(2, mode='embedded_gaussian', **arguments)
    settings = Settings(
        'embedded_gaussian',
        block.use_scale,
        block.sub_sample,
        1e-3 if 'norm_cfg' in arguments else None,
    )
    weights = to_attention(block.double().state_dict(), settings)
    layer = layer_like('RegularAttention2d', weights, pooling=block.sub_sample).double()
    layer.load_state_dict(weights)
    x = x.double()
    assert (block(x) - x).abs().max() > 0.1
    torch.testing.assert_close(layer(x), block(x), rtol=1e-10, atol=1e-10)
    if not block.sub_sample:
        wanted = Settings('embedded_gaussian', block.use_scale, norm_eps=settings.norm_eps)
        again = block_and_input(2, mode='embedded_gaussian', **arguments)[0].double()
        again.load_state_dict(from_attention(weights, wanted))
        torch.testing.assert_close(again(x), block(x), rtol=1e-10, atol=1e-10)


def test_gaussian_has_identities_for_projections() -> None:
    block, x = block_and_input(2, mode='gaussian', reduction=1)
    weights = to_attention(block.state_dict(), Settings('gaussian'))
    layer = layer_like('RegularAttention2d', weights)
    torch.testing.assert_close(layer(x), block(x), rtol=1e-4, atol=1e-5)


def test_scale_comes_back_within_a_rounding() -> None:
    block, _ = block_and_input(2, mode='embedded_gaussian')
    settings = Settings('embedded_gaussian')
    back = from_attention(to_attention(block.state_dict(), settings), settings)
    for key, value in block.state_dict().items():
        torch.testing.assert_close(back[key], value, rtol=2e-7, atol=0)


def test_efficient_attention_of_a_softmax_block_is_said_to_be_approximate(
    convert, save, tmp_path: Path
) -> None:
    block, _ = block_and_input(2, mode='embedded_gaussian')
    text = convert(
        'non-local', save(block), tmp_path / 'out.pth', '--mode', 'embedded_gaussian', '--compare'
    )
    assert 'approximate: two softmaxes for one' in text
    share = float(text.partition('largest difference')[2].split(',')[1].split()[0])
    assert 0.01 < share < 10
    text = convert(
        'non-local',
        save(block),
        '--dry-run',
        '--mode',
        'embedded_gaussian',
        '--to',
        'RegularAttention',
        '--compare',
    )
    share = float(text.partition('largest difference')[2].split(',')[1].split()[0])
    assert share < 1e-5
    text = convert('non-local', save(block), '--dry-run', '--mode', 'dot_product', '--compare')
    share = float(text.partition('largest difference')[2].split(',')[1].split()[0])
    assert share < 1e-5 and 'equal up to rounding' in text


def test_what_has_no_counterpart_is_refused(convert, save, tmp_path: Path) -> None:
    output = tmp_path / 'no.pth'

    def refused(words: str, *arguments: object, **settings) -> None:
        mode = settings.get('mode', 'embedded_gaussian')
        block, _ = block_and_input(2, **settings)
        said = mode if mode != 'concatenation' else 'dot_product'
        assert words in convert(
            'non-local', save(block), output, '--mode', said, *arguments, code=1
        )

    refused("has mode='concatenation'", mode='concatenation')
    refused('keys and values are max pooled', sub_sample=True)
    refused('a norm without running statistics', norm_cfg=dict(type='GN', num_groups=3))
    refused("there is no block at 'x'", '--place', 'x=y')
    block, _ = block_and_input(2, mode='gaussian', reduction=1)
    assert "no theta, so its mode is 'gaussian'" in convert(
        'non-local', save(block), output, '--mode', 'dot_product', code=1
    )
    assert 'there is no non-local block' in convert(
        'non-local', save(nn.Linear(2, 2)), output, '--mode', 'dot_product', code=1
    )
    with pytest.raises(ConversionError, match='not clear.*--place neck.1.refine=NEW'):
        place_of('neck.1.refine', 'EfficientAttention')
    with pytest.raises(ConversionError, match='as many key as value channels'):
        from_attention(layers.EfficientAttention2d(8, 4, 8).state_dict(), Settings('dot_product'))
    assert not output.exists()
    block, _ = block_and_input(2, sub_sample=True)
    text = convert(
        'non-local', save(block), output, '--mode', 'embedded_gaussian', '--without-sub-sample'
    )
    assert 'pooling of keys and values is lost' in text and output.exists()


DETECTOR = """
default_scope = 'mmdet'
custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
plugin = {plugin}
model = dict(
    type='RetinaNet',
    data_preprocessor=dict(type='DetDataPreprocessor', mean=[127.5] * 3, std=[127.5] * 3,
                           pad_size_divisor=32),
    backbone=dict(type='kronattn_mm.Plugged', base='mmdet.ResNet', depth=50, base_channels=4,
                  stem_channels=4, num_stages=3, strides=(1, 2, 2), dilations=(1, 1, 1),
                  out_indices=(0, 1, 2), style='pytorch',
                  plugins=[dict(cfg=plugin, stages=(False, False, True),
                                position='after_conv2')],
                  insert=[dict(at='res2', layer={layer})]),
    neck=dict(type='FPN', in_channels=[16, 32, 64], out_channels=8, num_outs=5),
    bbox_head=dict(type='RetinaHead', num_classes=2, in_channels=8, feat_channels=8,
                   stacked_convs=1))
"""


def detector(folder: Path, name: str, plugin: dict, layer: dict) -> Path:
    (folder / name).write_text(DETECTOR.format(plugin=plugin, layer=layer))
    return folder / name


def test_detector_with_plugins_becomes_an_efficient_one_with_the_same_features(
    convert, save, tmp_path: Path, shared: Path
) -> None:
    pytest.importorskip('mmdet')
    theirs = detector(
        tmp_path,
        'nl.py',
        dict(type='NonLocal2d', mode='dot_product'),
        dict(type='NonLocal2d', mode='dot_product', reduction=2),
    )
    ours = detector(
        tmp_path,
        'ea.py',
        dict(
            type='kronattn_mm.EfficientAttention2d',
            key_channels=8,
            value_channels=8,
            normalization='scaling',
        ),
        dict(
            type='kronattn_mm.EfficientAttention2d',
            key_channels=16,
            value_channels=16,
            normalization='scaling',
        ),
    )
    source = trained(load_model(theirs)[0])
    for module in source.modules():  # products of three maps, seven times: keep them small
        if isinstance(module, bricks.NonLocal2d):
            module.theta.conv.weight.data *= 0.1
            module.phi.conv.weight.data *= 0.1
    picture = next((shared / 'data' / 'coco_mini' / 'val').glob('*.jpg'))
    # The plugin sits at 16 channels of each block of the last stage, the insertion at 32.
    text = convert(
        'non-local',
        save(source),
        tmp_path / 'out.pth',
        '--source-config',
        theirs,
        '--config',
        ours,
        '--compare',
        picture,
    )
    assert 'backbone.layer3.5.nonlocal_block -> backbone.layer3.5.efficient_attention2d' in text
    assert 'backbone.attention.res2 -> backbone.attention.res2' in text
    assert ' 0 missing' in text and ' 0 of another shape' in text and '0 dropped' in text
    shares = [
        float(line.split(', ')[-1].split()[0])
        for line in text.splitlines()
        if 'largest difference' in line
    ]
    assert len(shares) == 7 and max(shares) < 1e-4
    target = inferring(load_model(ours)[0])
    target.load_state_dict(load(tmp_path / 'out.pth'))
    x = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        for got, expected in zip(target.extract_feat(x), source.extract_feat(x), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
    convert(
        'non-local',
        tmp_path / 'out.pth',
        tmp_path / 'back.pth',
        '--back',
        '--mode',
        'dot_product',
        '--config',
        theirs,
    )
    assert_same(load(tmp_path / 'back.pth'), source.state_dict())


SEGMENTER = """
default_scope = 'mmseg'
custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
head = dict(in_channels=32, channels=16, num_classes=3, in_index=3, norm_cfg=dict(type='BN'))
model = dict(
    type='EncoderDecoder',
    backbone=dict(type='MobileNetV2', widen_factor=0.1),
    decode_head=dict(**{head}))
"""


def test_nl_head_becomes_an_fcn_head_with_attention(convert, save, tmp_path: Path) -> None:
    pytest.importorskip('mmseg')
    theirs, ours = tmp_path / 'nl.py', tmp_path / 'ea.py'
    common = 'in_channels=32, channels=16, num_classes=3, in_index=3, norm_cfg=dict(type="BN")'
    text = SEGMENTER.replace('head = dict', 'unused = dict')
    theirs.write_text(text.format(head=f'dict(type="NLHead", mode="dot_product", {common})'))
    ours.write_text(
        text.format(
            head=(
                'dict(type="kronattn_mm.Plugged", base="mmseg.FCNHead", num_convs=2, insert=[dict('
                'at="convs.0", layer=dict(type="kronattn_mm.EfficientAttention2d", key_channels=8, '
                f'value_channels=8, normalization="scaling"))], {common})'
            )
        )
    )
    source = trained(load_model(theirs)[0])
    printed = convert(
        'non-local', save(source), tmp_path / 'out.pth', '--source-config', theirs, '--config', ours
    )
    assert 'decode_head.nl_block -> decode_head.attention.convs_0' in printed
    assert 'batch norm (eps 1e-05) folded' in printed
    assert ('decode_head.nl_block.conv_out.bn.num_batches_tracked: folded batch norm') in printed
    target = inferring(load_model(ours)[0])
    target.load_state_dict(load(tmp_path / 'out.pth'))
    x = torch.randn(1, 3, 65, 97)

    def logits(model: nn.Module) -> Tensor:
        with torch.no_grad():
            return model.decode_head(model.backbone(x))

    torch.testing.assert_close(logits(target), logits(source), rtol=1e-4, atol=1e-5)
    convert(
        'non-local',
        tmp_path / 'out.pth',
        tmp_path / 'back.pth',
        '--back',
        '--mode',
        'dot_product',
        '--config',
        theirs,
        '--place',
        'decode_head.attention.convs_0=decode_head.nl_block',
    )
    again = inferring(load_model(theirs)[0])
    again.load_state_dict(load(tmp_path / 'back.pth'))
    torch.testing.assert_close(logits(again), logits(source), rtol=1e-4, atol=1e-5)


def test_layer_of_the_config_with_another_normalization_is_said(
    convert, save, tmp_path: Path
) -> None:
    pytest.importorskip('mmdet')
    layer = dict(type='kronattn_mm.EfficientAttention2d', key_channels=16, value_channels=16)
    config = detector(tmp_path, 'ea.py', dict(type='ContextBlock', ratio=0.5), layer)
    block, _ = block_and_input(2)
    block = trained(bricks.NonLocal2d(32, mode='dot_product'))
    state = {f'backbone.attention.res2.{key}': value for key, value in block.state_dict().items()}
    text = convert(
        'non-local',
        save(state),
        '--dry-run',
        '--mode',
        'dot_product',
        '--config',
        config,
        '--allow',
        'backbone.*',
        'neck',
        'bbox_head',
    )
    assert "backbone.attention.res2 of the model has normalization='softmax'" in text
    # A model may keep some of its blocks.
    config = detector(
        tmp_path,
        'nl.py',
        dict(type='ContextBlock', ratio=0.5),
        dict(type='NonLocal2d', reduction=2),
    )
    convert(
        'non-local',
        save(state),
        tmp_path / 'same.pth',
        '--mode',
        'dot_product',
        '--config',
        config,
        '--allow',
        'backbone.*',
        'neck',
        'bbox_head',
    )
    assert_same(load(tmp_path / 'same.pth'), state)
