"""docs/troubleshooting.md: the messages it quotes are those that appear, and the remedies help."""

import re
from pathlib import Path

import pytest
import torch
from documentation import DOCS

pytest.importorskip('mmdet')
from mmengine.config import Config
from mmengine.logging import HistoryBuffer
from mmengine.registry import MODELS, init_default_scope

from kronattn_mm.engine import FreezeHook
from kronattn_mm.layers import ShiftBalanceConv2d, SqueezeExciteConv2d
from kronattn_mm.plugging import Plugged

PAGE = (DOCS / 'troubleshooting.md').read_text(encoding='utf-8')
EA = dict(type='kronattn_mm.EfficientAttention2d', key_channels=4, value_channels=4)
SSD = dict(
    num_classes=2,
    in_channels=(8,),
    anchor_generator=dict(
        type='mmdet.SSDAnchorGenerator',
        scale_major=False,
        input_size=300,
        basesize_ratio_range=(0.15, 0.9),
        strides=[8],
        ratios=[[2]],
    ),
)


def resnet(**entry):
    return Plugged(
        'mmdet.ResNet', depth=18, base_channels=8, stem_channels=8, insert=[dict(layer=EA, **entry)]
    )


def config(folder: Path, text: str) -> Config:
    path = folder / 'made.py'
    path.write_text(text, encoding='utf-8')
    return Config.fromfile(path)


def without_scope(folder):
    init_default_scope('mmdet')
    MODELS.build(dict(type='Plugged', base='mmdet.ResNet', depth=18))


def own_log(folder):
    torch.save(dict(log=HistoryBuffer([1.0], [1])), folder / 'epoch_1.pth')
    allowed = torch.serialization.get_safe_globals()  # beside the originals: by this package
    torch.serialization.clear_safe_globals()
    try:
        torch.load(folder / 'epoch_1.pth')
    finally:
        torch.serialization.add_safe_globals(allowed)


def swin(folder):
    Plugged(
        'mmdet.SwinTransformer',
        embed_dims=8,
        depths=(1, 1, 1, 1),
        num_heads=(1, 1, 1, 1),
        insert=[dict(at='stages.2', layer=EA)],
    )


# What the page quotes, and what provokes it.
SYMPTOMS = {
    'Plugged is not in the mmdet::model registry': without_scope,
    'unknown point': lambda folder: resnet(at='rez3'),
    'matches no convolution': lambda folder: Plugged(
        'mmdet.ResNet',
        depth=18,
        base_channels=8,
        stem_channels=8,
        convs=[dict(at='layer9*', layer=dict(type='kronattn_mm.ShiftBalanceConv2d'))],
    ),
    'lies between the convolution': lambda folder: resnet(at='layer3.0.conv1'),
    'is a batch norm': lambda folder: resnet(at='layer3.0.bn1'),
    'Not implemented yet': lambda folder: MODELS.build(
        dict(type='mmdet.ResNet', depth=18, plugins=[dict(cfg=EA, position='after_conv2')])
    ),
    'gives several outputs': swin,
    'does not support to load kronattn_mm config': lambda folder: config(
        folder, "_base_ = 'kronattn_mm::quickstart/_base_/small_mask-rcnn.py'"
    ),
    'Weights only load failed': own_log,
    'Expected more than 1 value per channel when training': lambda folder: torch.nn.BatchNorm2d(
        4
    ).train()(torch.zeros(1, 4, 1, 1)),
    "'SSDHead' object has no attribute 'loss_cls'": lambda folder: (
        MODELS.build(dict(SSD, type='mmdet.SSDHead')).loss_cls
    ),
}


@pytest.mark.parametrize('symptom', SYMPTOMS)
def test_the_symptom_is_quoted_as_it_appears(symptom, tmp_path):
    assert f'`{symptom}' in PAGE
    with pytest.raises(Exception, match=re.escape(symptom)):
        SYMPTOMS[symptom](tmp_path)


def test_a_base_of_mmseg_is_not_found_beside_the_fork(tmp_path):
    pytest.importorskip('mmseg')
    from importlib.metadata import PackageNotFoundError, version

    try:
        version('onedl-mmsegmentation')
    except PackageNotFoundError:
        pytest.skip('the originals find it')
    assert '`mmsegmentation is not installed`' in PAGE
    with pytest.raises(ModuleNotFoundError, match='mmsegmentation is not installed'):
        config(tmp_path, "_base_ = 'mmseg::_base_/default_runtime.py'")


def test_remedies_for_points():
    for at in ('res3', 'layer3.*', 'layer3.0'):
        resnet(at=at)
    Plugged(
        'mmdet.SwinTransformer',
        embed_dims=8,
        depths=(1, 1, 1, 1),
        num_heads=(1, 1, 1, 1),
        insert=[dict(at='out0-3', layer=EA)],
    )


def test_ours_work_in_the_plugins_of_deeper_resnets():
    backbone = MODELS.build(
        dict(
            type='mmdet.ResNet',
            depth=50,
            base_channels=8,
            stem_channels=8,
            num_stages=1,
            strides=(1,),
            dilations=(1,),
            out_indices=(0,),
            frozen_stages=-1,
            plugins=[dict(cfg=EA, stages=(True,), position='after_conv3')],
        )
    )
    names = {name for name, _ in backbone.named_parameters()}
    assert any('efficient_attention2d' in name for name in names)


@pytest.mark.parametrize('layer', [ShiftBalanceConv2d, SqueezeExciteConv2d])
def test_branches_train_with_a_single_picture(layer):
    conv = layer(4, 4, 3, padding=1).train()
    output = conv(torch.randn(1, 4, 8, 8))
    output.square().mean().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in conv.parameters())


def test_ssd_head_that_evaluates():
    ours = MODELS.build(dict(SSD, type='kronattn_mm.SSDHead'))
    assert hasattr(ours, 'loss_cls')
    theirs = MODELS.build(dict(SSD, type='mmdet.SSDHead'))
    assert ours.state_dict().keys() == theirs.state_dict().keys()


def test_a_layer_at_a_frozen_stage_trains():
    backbone = Plugged(
        'mmdet.ResNet',
        depth=18,
        base_channels=8,
        stem_channels=8,
        frozen_stages=3,
        insert=[dict(at='res2', layer=EA)],
    )
    backbone.train()
    assert not any(parameter.requires_grad for parameter in backbone.layer2.parameters())
    assert all(parameter.requires_grad for parameter in backbone.attention.parameters())


def test_messages_of_ours_are_in_the_code():
    """Those of the table's rows that are ours."""
    code = ''.join(
        path.read_text(encoding='utf-8') for path in (DOCS.parent / 'kronattn_mm').rglob('*.py')
    )
    code = re.sub(r"'\s*\n\s*f?'", '', code)
    for words in (
        'parameters to train stay frozen, as the model itself froze them',
        'keys of inserted layers are not in the checkpoint: what is tested has untrained layers',
        'SmallFileHook writes no file: ',
        'the checkpoint does not fit the model',
    ):
        assert words in PAGE and words in code, words
    assert FreezeHook().words == ['attention']
