"""tools/analysis_tools/plugin_summary.py: what sits where, and bad input."""

import json
import subprocess
import sys

import pytest
from analysis_tool import ROOT, call_tool, load_tool, write_config

DETECTOR = """
_base_ = 'mmdet::retinanet/retinanet_r18_fpn_1x_coco.py'
model = dict(
    backbone=dict(type='kronattn_mm.Plugged', base='mmdet.ResNet',
                  convs=[dict(at='layer4.1', layer=dict(type='ConvAWS'))],
                  insert=[dict(at='res3', with_cp=True,
                               layer=dict(type='kronattn_mm.EfficientAttention2d')),
                          dict(at='layer4.0', norm_eval=True,
                               layer=dict(type='NonLocal2d', norm_cfg=dict(type='BN')))]),
    neck=dict(type='kronattn_mm.Plugged', base='mmdet.FPN',
              insert=[dict(at='fpn5', layer=dict(type='ContextBlock', ratio=0.25))]))
"""
CLASSIFIER = """
_base_ = 'mmpretrain::mobilenet_v2/mobilenet-v2_8xb32_in1k.py'
model = dict(backbone=dict(type='kronattn_mm.Plugged', base='mmpretrain.MobileNetV2',
                           insert=[dict(at='layer5', layer=dict(type='NonLocal2d'))]))
"""
MASK_HEAD = """
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
model = dict(
    backbone=dict(depth=18), neck=dict(in_channels=[64, 128, 256, 512]),
    roi_head=dict(mask_head=dict(
        type='kronattn_mm.Plugged', base='mmdet.FCNMaskHead',
        insert=[dict(at='convs.3', layer=dict(type='kronattn_mm.EfficientAttention2d'))])))
"""


@pytest.fixture(scope='module')
def summary():
    return load_tool('plugin_summary')


def row(text, name):
    return next(line for line in text.splitlines() if line.startswith(name)).split()


def test_detector(summary, tmp_path, capfd):
    pytest.importorskip('mmdet')
    config = write_config(tmp_path, DETECTOR)
    code, out, _ = call_tool(summary, capfd, config, '--shape', '256', '320')
    assert code == 0
    assert max(map(len, out.splitlines()[2:])) <= 100
    d, n = 256, 16 * 20
    macc = n * d * 256 + 2 * n * 64 * 64
    assert row(out, 'backbone.res3') == [
        'backbone.res3',
        'EfficientAttention2d',
        '256x16x20',
        f'{4 * d * 64 + 3 * 64 + d:,}',
        f'{macc / 1e6:.1f}',
        'M',
        'with_cp',
    ]
    assert row(out, 'backbone.layer4.0')[:3] == ['backbone.layer4.0', 'NonLocal2d', '512x8x10']
    assert row(out, 'backbone.layer4.0')[-1] == 'norm_eval'
    assert row(out, 'neck.fpn5')[:3] == ['neck.fpn5', 'ContextBlock', '256x2x3']
    assert row(out, 'backbone.layer4.1.conv1') == [
        'backbone.layer4.1.conv1',
        'ConvAWS2d',
        '512x8x10',
        f'{512 * 512 * 9:,}',
        '189',
        'M',
    ]
    assert row(out, 'total')[0] == 'total'
    assert 'share of the model:' in out and 'backbone + neck' in out


def test_classifier_as_json(summary, tmp_path, capfd):
    pytest.importorskip('mmpretrain')
    code, out, _ = call_tool(summary, capfd, write_config(tmp_path, CLASSIFIER), '--json')
    content = json.loads(out)
    assert code == 0
    assert content['image_shape'] == [224, 224]
    assert 'CenterCrop' in content['image_shape_source']
    (layer,) = content['layers']
    assert (layer['name'], layer['layer'], layer['shape']) == (
        'backbone.layer5',
        'NonLocal2d',
        [1, 96, 14, 14],
    )
    assert content['replaced_convs'] == []
    # torchvision's MobileNetV2 1.0 has 300,774,272, of which 1,280,000 are the classifier's.
    assert content['model']['macc'] - layer['executed']['macc'] == 300_774_272 - 1_280_000


def test_layer_in_a_second_stage(summary, tmp_path, capfd):
    pytest.importorskip('mmdet')
    config = write_config(tmp_path, MASK_HEAD)
    code, out, _ = call_tool(summary, capfd, config, '--shape', '128', '128')
    assert code == 0
    assert row(out, 'roi_head')[:4] == [
        'roi_head.mask_head.convs.3',
        '*',
        'EfficientAttention2d',
        '256x14x14',
    ]
    assert 'not run by backbone + neck' in out


def test_nothing_inserted(summary, tmp_path, capfd):
    pytest.importorskip('mmpretrain')
    config = write_config(
        tmp_path, "_base_ = 'mmpretrain::mobilenet_v2/mobilenet-v2_8xb32_in1k.py'"
    )
    code, out, _ = call_tool(summary, capfd, config)
    assert code == 0
    assert 'no layer is inserted into this model' in out


def test_mistake_in_the_insertion_is_one_line(summary, tmp_path, capfd):
    pytest.importorskip('mmpretrain')
    config = write_config(tmp_path, CLASSIFIER.replace("at='layer5'", "at='layer55'"))
    code, out, err = call_tool(summary, capfd, config)
    assert (code, out) == (2, '')
    assert len(err.splitlines()) == 2  # what is being built, and the mistake
    assert "unknown point 'layer55'" in err and 'layer5' in err


def test_in_a_process_of_its_own(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / 'tools/analysis_tools/plugin_summary.py'), 'absent.py'],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (2, '')
    assert done.stderr.splitlines()[-1].startswith(
        'plugin_summary.py: error: there is no config file absent.py'
    )
