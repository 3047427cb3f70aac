"""The points that are listed are those that ``Plugged`` takes, with the shapes it finds."""

import json
import subprocess
import sys

import pytest
import torch
from analysis_tool import ROOT, call_tool, load_tool, write_config

pytest.importorskip('mmdet')

from kronattn_mm.cost.config import load_model, quiet
from kronattn_mm.listing import list_points
from kronattn_mm.plugging import Plugged, inserted_layers, insertion_shapes, replaced_convs
from kronattn_mm.plugging.points import split_points

RETINANET = 'mmdet::retinanet/retinanet_r18_fpn_1x_coco.py'
LAYER = dict(type='ContextBlock', ratio=1.0)
SHAPE = (160, 224)


def test_a_line_for_volumes_has_a_layer_for_volumes():
    config = ROOT / 'configs/efficient_attention/stereo/small/psmnet_composed-pairs.py'
    model, config = load_model(str(config))
    for part in list_points(model, config, (32, 48)):
        axes = 2 if part.part == 'backbone' else 3
        assert f'EfficientAttention{axes}d' in part.paste
        if part.part == 'head':
            continue  # its costs have one channel; nobody puts attention there
        pasted = eval(part.paste.partition('=')[2])
        with quiet():
            module = Plugged(
                pasted['base'], insert=pasted['insert'], **arguments_of(config, part.part)
            )
        assert inserted_layers(module)
        if part.part == 'neck':
            assert len(module(torch.zeros(1, 32, 8, 12))) == 3


@pytest.fixture(scope='module')
def tool():
    return load_tool('points')


def arguments_of(config, part):
    """The config of a part without its type, and not to be downloaded."""
    content = config.model
    for key in part.split('.'):
        content = content[key]
    return {key: value for key, value in content.items() if key not in ('type', 'init_cfg')}


def part_of(parts, name):
    return next(part for part in parts if part.part == name)


def test_every_listed_point_can_be_taken_and_has_that_shape():
    model, config = load_model(RETINANET)
    parts = list_points(model, config, SHAPE)
    assert [part.part for part in parts] == ['backbone', 'neck', 'bbox_head']
    for part in parts[:2]:
        entries = part.words + part.paths
        assert len(entries) > 10
        arguments = arguments_of(config, part.part)
        # Words and paths may name the same place, so that each gets a build of its own.
        for group in (part.words[:4] if part.part == 'backbone' else part.words, part.paths):
            with quiet():
                module = Plugged(
                    part.base,
                    insert=[dict(at=entry.at, layer=LAYER) for entry in group],
                    **arguments,
                )
            setattr(model, part.part, module)
            shapes = insertion_shapes(model, SHAPE)
            expected = {}
            for entry in group:
                names = [f'{part.part}.{name}' for name in split_points(entry.at)]
                found = [
                    name
                    for name in inserted_layers(model)
                    if name in names or entry.places == len(names) == 0
                ]
                if '*' not in entry.at:
                    assert len(found) == entry.places, entry
                    expected |= dict.fromkeys(found, entry.shape)
            assert expected == {name: shapes[name] for name in expected}
            assert len(inserted_layers(module)) == sum(entry.places for entry in group)


def test_words_have_channels_and_strides():
    model, config = load_model(RETINANET)
    parts = list_points(model, config, (800, 1333))
    stages = {
        entry.at: (entry.channels, entry.stride) for entry in part_of(parts, 'backbone').words
    }
    assert stages['res3'] == (256, (16, 16)) and stages['out0'] == (64, (4, 4))
    levels = {entry.at: entry.stride for entry in part_of(parts, 'neck').words}
    assert levels == {f'fpn{level}': (4 * 2**level,) * 2 for level in range(1, 6)}
    head = {entry.at: entry for entry in part_of(parts, 'bbox_head').paths}
    assert head['cls_convs.0-3'].places == 4 and head['cls_convs.0-3'].calls == 5
    assert "insert=[dict(at='res3-4'," in part_of(parts, 'backbone').paste
    assert "base='mmdet.FPN'" in part_of(parts, 'neck').paste


def test_every_listed_convolution_can_be_replaced():
    model, config = load_model(RETINANET)
    part = part_of(list_points(model, config, SHAPE), 'backbone')
    with quiet():
        module = Plugged(
            part.base,
            convs=[dict(at=group.at, layer=dict(type='ConvAWS')) for group in part.convs],
            **arguments_of(config, 'backbone'),
        )
    assert len(replaced_convs(module)) == sum(group.number for group in part.convs) == 20


def test_regions_own_layers_and_channels_last(tmp_path):
    config = write_config(
        tmp_path,
        """
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
model = dict(
    backbone=dict(_delete_=True, type='SwinTransformer', embed_dims=16, depths=(1, 1, 1, 1),
                  num_heads=(1, 2, 4, 8)),
    neck=dict(type='kronattn_mm.Plugged', base='mmdet.FPN', in_channels=[16, 32, 64, 128],
              insert=[dict(at='fpn2', layer=dict(type='ContextBlock', ratio=1.))]))
""",
    )
    model, config = load_model(config)
    parts = list_points(model, config, SHAPE)
    backbone, neck = part_of(parts, 'backbone'), part_of(parts, 'neck')
    assert [entry.at for entry in backbone.words] == ['out0', 'out1', 'out2', 'out3']
    assert not any('blocks' in entry.at for entry in backbone.paths)  # tokens before channels
    assert {entry.at: entry.taken for entry in neck.words}['fpn2'] == 'ContextBlock'
    assert neck.base == 'mmdet.FPN'
    assert not any('attention' in item.at for item in neck.paths + neck.convs)
    mask = {entry.at: entry for entry in part_of(parts, 'roi_head.mask_head').paths}
    assert mask['convs.0-3'].shape == (1, 256, 14, 14) and mask['convs.0-3'].stride is None
    assert part_of(parts, 'roi_head.bbox_head').problem


def test_as_text_and_json(tool, capfd):
    code, out, err = call_tool(tool, capfd, RETINANET, 'neck', '--shape', '160', '224')
    assert code == 0 and 'building' in err
    assert '== neck: mmdet.FPN' in out and 'backbone' not in out
    row = next(line for line in out.splitlines() if line.startswith('fpn1'))
    assert row.split() == ['fpn1', 'output', '256', '8', '256x20x28']
    assert 'lateral_convs.*.conv' in out and 'more inside blocks (--all)' in out
    code, out, _ = call_tool(tool, capfd, RETINANET, '--json', '--shape', '160', '224')
    content = json.loads(out)
    assert code == 0 and content['image_shape'] == [160, 224]
    assert content['parts'][1]['words'][0]['channels'] == 256


@pytest.mark.parametrize(
    'argv, message',
    [
        (
            ['mmdet::retinanet/retinanet_r18_fpn_1x_coc.py'],
            'did you mean mmdet::retinanet/retinanet_r18_fpn_1x_coco.py?',
        ),
        (['nolibrary::a.py'], "'nolibrary' is not installed"),
        ([RETINANET, 'bakbone'], "did you mean 'backbone'? There are backbone, neck, bbox_head"),
        ([RETINANET, '--shape', '0', '3'], 'must be positive integers'),
    ],
)
def test_mistakes(tool, capfd, argv, message):
    code, out, err = call_tool(tool, capfd, *argv)
    assert code == 2 and message in err and not out and 'Traceback' not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    'config, part',
    [
        ('mmseg::deeplabv3/deeplabv3_r50-d8_4xb2-40k_cityscapes-512x1024.py', 'decode_head'),
        ('mmpretrain::resnet/resnet18_8xb32_in1k.py', 'backbone'),
        ('mmdet::yolox/yolox_s_8xb8-300e_coco.py', 'bbox_head'),
        ('mmdet::detr/detr_r50_8xb2-150e_coco.py', 'neck'),
    ],
)
def test_configs_of_every_library(config, part):
    done = subprocess.run(
        [sys.executable, ROOT / 'tools/analysis_tools/points.py', config, '--json'],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    parts = {entry['part']: entry for entry in json.loads(done.stdout)['parts']}
    assert parts[part]['paste'] and parts[part]['paths']
