"""tools/analysis_tools/cost.py: on configs, on the paper's figures, on bad input."""

import json
import re
import subprocess
import sys

import pytest
from analysis_tool import ROOT, call_tool, load_tool, write_config
from PIL import Image

MASK_RCNN = """
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_2x_coco.py'
custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
attention = dict(type='kronattn_mm.EfficientAttention2d', key_channels=64, value_channels=64)
model = dict(
    backbone=dict(type='kronattn_mm.Plugged', base='mmdet.ResNet',
                  insert=[dict(at='res3-4', layer=attention)]),
    neck=dict(type='kronattn_mm.Plugged', base='mmdet.FPN',
              insert=[dict(at='fpn1-5', layer=attention)]))
"""
SEGMENTER = """
default_scope = 'mmseg'
attention = dict(type='kronattn_mm.EfficientAttention2d', key_channels=16, value_channels=16)
model = dict(
    type='EncoderDecoder', pretrained='open-mmlab://resnet18_v1c',
    backbone=dict(type='kronattn_mm.Plugged', base='mmseg.ResNetV1c', depth=18,
                  norm_cfg=dict(type='SyncBN', requires_grad=True),
                  insert=[dict(at='res4', layer=attention)]),
    decode_head=dict(type='kronattn_mm.Plugged', base='mmseg.FCNHead', in_channels=512, in_index=3,
                     channels=64, num_classes=19, num_convs=2,
                     insert=[dict(at='convs', layer=dict(type='ContextBlock', ratio=0.25))]),
    train_cfg=dict(), test_cfg=dict(mode='whole'))
"""


@pytest.fixture(scope='module')
def cost():
    return load_tool('cost')


def test_mask_rcnn_in_a_process_of_its_own(tmp_path):
    pytest.importorskip('mmdet')
    chart = tmp_path / 'chart.png'
    config = write_config(tmp_path, MASK_RCNN)
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / 'tools/analysis_tools/cost.py'),
            config,
            '--shape',
            '896',
            '1280',
            '--chart',
            str(chart),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines[2:])) <= 100
    assert lines[0].endswith('MaskRCNN, one image of 896 x 1280')
    fpn5 = next(line for line in lines if line.startswith('neck.fpn5'))
    assert fpn5.split()[:3] == ['neck.fpn5', 'EfficientAttention2d', '256x14x20']
    assert '20.6 M' in fpn5 and '877 K' in fpn5
    assert '8,847,032,320 multiply-accumulates, 354,213,888 bytes' in done.stdout
    assert '1,119,808 parameters' in done.stdout
    assert 'multiply-accumulates of backbone + neck' in done.stdout
    # Nothing of what upstream code logs or warns of, and no colour codes in a pipe.
    assert '\x1b' not in done.stdout and 'INFO' not in done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 2, done.stderr
    assert Image.open(chart).size[0] > 600
    assert sorted(path.name for path in tmp_path.iterdir()) == ['chart.png', 'config.py']


def test_segmenter_as_json(cost, tmp_path, capfd):
    pytest.importorskip('mmseg')
    code, out, _ = call_tool(cost, capfd, write_config(tmp_path, SEGMENTER), '--json')
    assert code == 0
    content = json.loads(out)
    assert content['image_shape'] == [512, 512]
    assert content['image_shape_source'].startswith('default for mmseg')
    backbone, head = content['layers']
    assert backbone['shape'] == [1, 512, 16, 16]
    assert backbone['paper'] == dict(
        params=512 * 64 + 48 + 512,
        macc=256 * 512 * 64 + 2 * 256 * 256,
        memory=4 * (256 * (2 * 512 + 64) + 256),
    )
    assert backbone['executed']['macc'] == backbone['paper']['macc']
    assert (head['name'], head['paper'], head['paper_note']) == (
        'decode_head.convs',
        None,
        'no formula in a paper',
    )
    assert head['executed']['macc'] > 0
    assert content['model']['macc_of'] == ['backbone', 'decode_head']


def test_layer_without_a_formula_is_said(cost, tmp_path, capfd):
    pytest.importorskip('mmseg')
    code, out, _ = call_tool(
        cost,
        capfd,
        write_config(tmp_path, SEGMENTER),
        '--shape',
        '64',
        '64',
        '--cfg-options',
        'model.decode_head.num_classes=2',
    )
    assert code == 0
    assert "no formula in a paper: ContextBlock; not in the total of the paper's accounting" in out
    assert 'backbone + decode_head' in out


def test_model_without_inserted_layers(cost, tmp_path, capfd):
    pytest.importorskip('mmpretrain')
    config = write_config(
        tmp_path, "_base_ = 'mmpretrain::mobilenet_v2/mobilenet-v2_8xb32_in1k.py'"
    )
    code, out, _ = call_tool(cost, capfd, config)
    assert code == 0
    assert 'no layer is inserted into this model (3,504,872 parameters)' in out
    code, _, err = call_tool(cost, capfd, config, '--chart', str(tmp_path / 'chart.png'))
    assert code == 2
    assert 'nothing to draw' in err
    assert not (tmp_path / 'chart.png').exists()


def test_paper_table_2(cost, capfd):
    code, out, _ = call_tool(cost, capfd, '--paper-table', '2')
    assert code == 0
    assert '36 of 36 figures agree' in out
    row = next(line for line in out.splitlines() if line.startswith('res3-4+fpn1-5'))
    assert [cell.split(' = ')[1] for cell in re.findall(r'[\d.]+ [KMG] = [\d.]+ [KMG]', row)] == [
        '354 M',
        '8.85 G',
        '22.4 G',
        '712 G',
    ]


def test_paper_figure_that_differs_is_exit_code_1(cost, capfd, monkeypatch):
    from kronattn_mm.cost import paper_tables

    monkeypatch.setitem(
        paper_tables.TABLE_2_PRINTED, 'res3', ('41.4 M', '1.21 G', '122 M', '3.74 G')
    )
    code, out, _ = call_tool(cost, capfd, '--paper-table', '2')
    assert code == 1
    assert '41.3 M != 41.4 M' in out
    assert '35 of 36 figures agree; these do not: res3, EA memory' in out


def test_paper_examples_as_text_and_json(cost, capfd):
    code, out, _ = call_tool(cost, capfd, '--paper-examples')
    assert code == 0
    assert '16 of 16 figures agree' in out
    assert max(map(len, out.splitlines())) <= 100
    code, out, _ = call_tool(cost, capfd, '--paper-examples', '--paper-table', '2', '--json')
    content = json.loads(out)
    assert code == 0
    assert len(content['paper_table_2']) == 36 and len(content['paper_examples']) == 16


def test_figure_2(cost, tmp_path, capfd):
    path = tmp_path / 'figure.png'
    code, out, err = call_tool(cost, capfd, '--figure', str(path))
    assert (code, out, err) == (0, '', f'wrote {path}\n')
    picture = Image.open(path).convert('RGB')
    colours = {colour for _, colour in picture.getcolors(maxcolors=1 << 24)}
    assert {(31, 119, 180), (255, 127, 14)} <= colours  # blue and orange bars
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ('argv', 'message'),
    [
        ([], 'give a CONFIG, or --paper-table 2'),
        (['absent.py'], 'there is no config file absent.py'),
        (
            ['absent.py', '--shape', '0', '64'],
            "height and width must be positive integers, got '0'",
        ),
        (
            ['absent.py', '--shape', 'a', '64'],
            "height and width must be positive integers, got 'a'",
        ),
        (['absent.py', '--shape', '64'], 'expected 2 arguments'),
        (['absent.py', '--cfg-options', 'depth'], "expected KEY=VALUE, got 'depth'"),
        (['absent.py', '--cfg-options', 'a=[1,(2'], 'Imbalanced brackets'),
        (['--shape', '64', '64', '--paper-examples'], 'need a CONFIG'),
        (['--paper-table', '7'], "invalid choice: '7'"),
        (['--figure', 'figure.jpg'], "invalid PNG file name value: 'figure.jpg'"),
        (['--figure', 'nowhere/figure.png'], 'nowhere'),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(cost, capfd, argv, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call_tool(cost, capfd, *argv)
    lines = [line for line in err.splitlines() if not line.startswith('building')]
    assert (code, out, len(lines)) == (2, '', 1)
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_config_without_a_model(cost, tmp_path, capfd):
    code, out, err = call_tool(cost, capfd, write_config(tmp_path, 'max_epochs = 12'))
    assert (code, out) == (2, '')
    assert 'has no model' in err


def test_help_has_an_example(cost, capfd):
    code, out, _ = call_tool(cost, capfd, '--help')
    assert code == 0
    assert 'example:\n  kronattn cost CONFIG.py --shape 896 1280' in out
