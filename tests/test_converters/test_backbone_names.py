"""Backbones between libraries: there and back bit for bit, and the same outputs on photographs."""

import importlib
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from converted import assert_same, inferring, load, trained
from torch import Tensor, nn

from kronattn_mm.converters import ConversionError
from kronattn_mm.converters.backbone_names import convert as rename
from kronattn_mm.registry import MODELS

torchvision = pytest.importorskip('torchvision')
pytest.importorskip('mmpretrain')


def photographs(shared: Path, size: int, count: int = 2) -> Tensor:
    """Real pictures at one size, about as a network was trained on them."""
    files = sorted((shared / 'data' / 'coco_mini' / 'val').glob('*.jpg'))[:count]
    pictures = [cv2.resize(cv2.imread(str(file))[..., ::-1], (size, size)) for file in files]
    return (torch.tensor(np.stack(pictures)).permute(0, 3, 1, 2).float() - 127.5) / 127.5


def made_pictures(size: int) -> Tensor:
    return torch.rand(2, 3, size, size) * 2 - 1


def classifier(backbone: dict, channels: int) -> nn.Module:
    importlib.import_module('mmpretrain.models')
    from mmpretrain.registry import MODELS as REGISTRY

    return REGISTRY.build(
        dict(
            type='ImageClassifier',
            backbone=backbone,
            neck=dict(type='GlobalAveragePooling'),
            head=dict(type='LinearClsHead', num_classes=1000, in_channels=channels),
        )
    )


FAMILIES = {
    'mobilenet_v2': (
        dict(type='MobileNetV2', widen_factor=0.35),
        1280,
        lambda: torchvision.models.mobilenet_v2(width_mult=0.35),
    ),
    'shufflenet_v2': (
        dict(type='ShuffleNetV2', widen_factor=0.5),
        1024,
        torchvision.models.shufflenet_v2_x0_5,
    ),
    'mnasnet': (
        dict(type='kronattn_mm.MnasNet', widen_factor=0.5),
        1280,
        torchvision.models.mnasnet0_5,
    ),
    'resnet': (dict(type='ResNet', depth=18, style='pytorch'), 512, torchvision.models.resnet18),
}


@pytest.mark.parametrize('family', FAMILIES)
def test_torchvision_gives_the_same_outputs_and_comes_back(
    convert, save, tmp_path: Path, family: str
) -> None:
    config, channels, theirs = FAMILIES[family]
    to = 'kronattn_mm' if family == 'mnasnet' else 'mmpretrain'
    network = trained(theirs())
    torch.save(network.state_dict(), tmp_path / 'theirs.pth')  # as torchvision's files are
    convert('backbone', tmp_path / 'theirs.pth', tmp_path / 'ours.pth', '--to', to)
    ours = classifier(config, channels).eval()
    ours.load_state_dict(load(tmp_path / 'ours.pth'))
    x = made_pictures(64)
    with torch.no_grad():
        torch.testing.assert_close(ours(x, mode='tensor'), network(x), rtol=1e-4, atol=1e-4)
    convert(
        'backbone',
        tmp_path / 'ours.pth',
        tmp_path / 'back.pth',
        '--to',
        'torchvision',
        '--from',
        to,
    )
    back = load(tmp_path / 'back.pth')
    assert_same(back, network.state_dict())
    assert back._metadata == {
        path: value
        for path, value in network.state_dict()._metadata.items()
        if path in back._metadata
    }


def test_trained_weights_say_the_same_of_photographs_in_every_library(
    convert, tmp_path: Path, shared: Path
) -> None:
    source = shared / 'weights' / 'mobilenet_v2_1.0_imagenet_classifier.pth'
    mmpretrain = classifier(dict(type='MobileNetV2'), 1280).eval()
    mmpretrain.load_state_dict(torch.load(source, weights_only=True)['state_dict'])
    x = photographs(shared, 97)
    with torch.no_grad():
        (features,) = mmpretrain.backbone(x)
        scores = mmpretrain(x, mode='tensor')
    convert('backbone', source, tmp_path / 'torchvision.pth', '--to', 'torchvision')
    network = torchvision.models.mobilenet_v2().eval()
    network.load_state_dict(load(tmp_path / 'torchvision.pth'))
    with torch.no_grad():
        torch.testing.assert_close(network(x), scores, rtol=1e-4, atol=1e-4)

    convert('backbone', source, tmp_path / 'mmdet.pth', '--to', 'mmdet', '--bare')
    theirs = torch.load(
        shared / 'weights' / 'mobilenet_v2_1.0_imagenet_mmdet.pth', weights_only=True
    )['state_dict']
    assert_same(load(tmp_path / 'mmdet.pth'), theirs)
    importlib.import_module('mmdet.models')
    from mmdet.registry import MODELS as DETECTION

    backbone = inferring(DETECTION.build(dict(type='MobileNetV2', out_indices=(7,))))
    backbone.load_state_dict(load(tmp_path / 'mmdet.pth'))
    with torch.no_grad():
        torch.testing.assert_close(backbone(x)[0], features, rtol=1e-4, atol=1e-4)

    convert(
        'backbone', tmp_path / 'mmdet.pth', tmp_path / 'back.pth', '--to', 'mmpretrain', '--bare'
    )
    whole = torch.load(source, weights_only=True)['state_dict']
    assert_same(
        load(tmp_path / 'back.pth'),
        {
            key.removeprefix('backbone.'): value
            for key, value in whole.items()
            if key.startswith('backbone.')
        },
    )


def test_segmenter_backbone_loses_what_mmseg_does_not_have(convert, save, tmp_path: Path) -> None:
    network = trained(torchvision.models.mobilenet_v2(width_mult=0.35))
    text = convert('backbone', save(network), tmp_path / 'out.pth', '--to', 'mmseg', '--bare')
    assert 'features.18.0.weight and 5 more: mmseg does not have this layer' in text
    importlib.import_module('mmseg.models')
    from mmseg.registry import MODELS as SEGMENTATION

    backbone = inferring(SEGMENTATION.build(dict(type='MobileNetV2', widen_factor=0.35)))
    backbone.load_state_dict(load(tmp_path / 'out.pth'))
    x = made_pictures(64)
    with torch.no_grad():
        torch.testing.assert_close(backbone(x)[-1], network.features[:18](x), rtol=1e-4, atol=1e-4)
    text = convert('backbone', tmp_path / 'out.pth', tmp_path / 'mmdet.pth', '--to', 'mmdet')
    assert 'mobilenet_v2: names of mmseg -> mmdet' in text
    assert 'backbone.layer1.0.depthwise_conv.conv.weight' in load(tmp_path / 'mmdet.pth')


def test_trained_segmenter_backbone_works_in_a_detector(
    convert, tmp_path: Path, shared: Path
) -> None:
    source = shared / 'weights' / 'deeplab_mobilenet_v2_voc_backbone.pth'
    convert('backbone', source, tmp_path / 'out.pth', '--to', 'mmdet', '--bare')
    x = photographs(shared, 97, count=1)
    outputs = []
    for library, file in (('mmseg', source), ('mmdet', tmp_path / 'out.pth')):
        importlib.import_module(f'{library}.models')
        backbone = inferring(MODELS.build(dict(type=f'{library}.MobileNetV2', out_indices=(2, 6))))
        result = backbone.load_state_dict(load(file), strict=False)
        assert all(key.startswith('conv2.') for key in result.missing_keys)
        with torch.no_grad():
            outputs.append(backbone(x))
    for ours, theirs in zip(*outputs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def plugged(library: str) -> nn.Module:
    importlib.import_module(f'{library}.models')
    conv = '1' if library == 'mmpretrain' else 'depthwise_conv'
    return MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base=f'{library}.MobileNetV2',
            widen_factor=0.35,
            out_indices=(2, 4),
            insert=[
                dict(
                    at='layer3',
                    layer=dict(
                        type='kronattn_mm.EfficientAttention2d', key_channels=8, value_channels=8
                    ),
                ),
                dict(
                    at=f'layer5.0.conv.{conv}' if library == 'mmpretrain' else f'layer5.0.{conv}',
                    layer=dict(
                        type='kronattn_mm.EfficientAttention2d', key_channels=4, value_channels=4
                    ),
                ),
            ],
            convs=[dict(at='layer2.*', layer=dict(type='kronattn_mm.ShiftBalanceConv2d'))],
        )
    )


def test_attended_backbone_moves_with_all_of_its_attention(convert, save, tmp_path: Path) -> None:
    source, target = trained(plugged('mmpretrain')), inferring(plugged('mmdet'))
    attended = [key for key in source.state_dict() if 'attention' in key]
    assert len(attended) > 30
    convert('backbone', save(source), tmp_path / 'out.pth', '--to', 'mmdet', '--bare')
    target.load_state_dict(load(tmp_path / 'out.pth'))
    x = made_pictures(64)
    with torch.no_grad():
        for ours, theirs in zip(target(x), source(x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    convert('backbone', tmp_path / 'out.pth', tmp_path / 'back.pth', '--to', 'mmpretrain', '--bare')
    assert_same(load(tmp_path / 'back.pth'), source.state_dict())
    text = convert('backbone', save(source), tmp_path / 'no.pth', '--to', 'torchvision', code=1)
    assert 'which torchvision does not have; take it out first (kronattn strip)' in text
    assert not (tmp_path / 'no.pth').exists()


def test_plain_weights_onto_an_attended_config_leave_attention_new(
    convert, save, tmp_path: Path
) -> None:
    config = tmp_path / 'config.py'
    config.write_text("""
default_scope = 'mmpretrain'
custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
model = dict(
    type='ImageClassifier',
    backbone=dict(type='kronattn_mm.Plugged', base='mmpretrain.MobileNetV2', widen_factor=0.35,
                  convs=[dict(at='layer2.*', layer=dict(type='kronattn_mm.ShiftBalanceConv2d'))]),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(type='LinearClsHead', num_classes=10, in_channels=1280))
""")
    source = save(torchvision.models.mobilenet_v2(width_mult=0.35))
    text = convert(
        'backbone', source, tmp_path / 'out.pth', '--to', 'mmpretrain', '--config', config, code=1
    )
    assert (
        'of another shape is head.fc.weight, (1000x1280 in the checkpoint, 10x1280 in the '
        'model) and 1 more'
    ) in text
    text = convert(
        'backbone',
        source,
        tmp_path / 'out.pth',
        '--to',
        'mmpretrain',
        '--config',
        config,
        '--allow',
        'head.fc',
        '--verbose',
    )
    assert 'backbone.layer2.0.conv.0.conv.attention' in text
    assert 'classifier.1.weight: of another shape, which was allowed' in text
    state = load(tmp_path / 'out.pth')
    assert not any('attention' in key or key.startswith('head') for key in state)


def test_wrong_inputs_are_said_in_one_sentence(convert, save, tmp_path: Path) -> None:
    network = torchvision.models.mobilenet_v2(width_mult=0.35).state_dict()
    output = tmp_path / 'out.pth'
    del network['features.5.conv.1.0.weight']
    assert 'features.5.conv.1.0.weight is missing, so this is no whole mobilenet_v2' in convert(
        'backbone', save(network), output, '--to', 'mmdet', code=1
    )
    assert 'is no weight of a mobilenet_v2 of torchvision' in convert(
        'backbone',
        save(network | {'features.99.weight': torch.zeros(1)}),
        output,
        '--to',
        'mmdet',
        code=1,
    )
    assert 'none of mobilenet_v2, shufflenet_v2, mnasnet, resnet' in convert(
        'backbone', save(nn.Linear(2, 2)), output, '--to', 'mmdet', code=1
    )
    assert not output.exists()
    with pytest.raises(ConversionError, match='have the names of torchvision already'):
        rename(torchvision.models.resnet18().state_dict(), 'torchvision')
    with pytest.raises(ConversionError, match="shufflenet_v2 has no names of 'mmdet'"):
        rename(torchvision.models.shufflenet_v2_x0_5().state_dict(), 'mmdet')
