"""extract, attach, strip and inspect, as a user calls them."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

pytest.importorskip('mmdet')
pytest.importorskip('safetensors')

from kronattn_mm.cli import attach, extract, inspect_file, strip
from kronattn_mm.cost.config import load_model
from kronattn_mm.plugging.removal import added_keys

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
default_scope = 'mmdet'
model = dict(
    type='RetinaNet',
    data_preprocessor=dict(type='DetDataPreprocessor', mean=[120.] * 3, std=[60.] * 3,
                           pad_size_divisor=32),
    backbone=dict(type='ResNet', depth=18, base_channels=8, out_indices=(1, 2, 3)),
    neck=dict(type='FPN', in_channels=[16, 32, 64], out_channels=16, num_outs=3),
    bbox_head=dict(type='RetinaHead', num_classes=2, in_channels=16, feat_channels=16,
                   stacked_convs=1))
test_pipeline = [dict(type='LoadImageFromFile'), dict(type='Resize', scale=(96, 64)),
                 dict(type='PackDetInputs')]
"""
PLUGGED = """
_base_ = './plain.py'
ea = dict(type='kronattn_mm.EfficientAttention2d', key_channels=4, value_channels=4)
model = dict(
    backbone=dict(type='kronattn_mm.Plugged', base='mmdet.ResNet',
                  insert=[dict(at='res2-3', layer=ea)],
                  convs=[dict(at='layer4', layer=dict(type='kronattn_mm.ShiftBalanceConv2d'))]),
    neck=dict(type='kronattn_mm.Plugged', base='mmdet.FPN',
              insert=[dict(at='fpn1', layer=dict(type='NonLocal2d', reduction=2))]))
"""


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    """Configs, a plain checkpoint, a checkpoint trained from it with the rest frozen, an image."""
    folder = tmp_path_factory.mktemp('files')
    (folder / 'plain.py').write_text(CONFIG)
    (folder / 'plugged.py').write_text(PLUGGED)
    torch.manual_seed(1)
    model, _ = load_model(folder / 'plugged.py')
    state = model.state_dict()
    ours = set(added_keys(model))
    for key in ours:
        if state[key].is_floating_point():
            state[key].copy_(torch.rand_like(state[key]) * 0.2 + 0.05)
    torch.save(
        dict(
            state_dict=state,
            meta=dict(epoch=7, cfg=(folder / 'plugged.py').read_text()),
            optimizer=dict(state={}),
        ),
        folder / 'trained.pth',
    )
    torch.save(
        {key: value for key, value in state.items() if key not in ours}, folder / 'plain.pth'
    )
    noise = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    cv2.imwrite(str(folder / 'image.png'), cv2.resize(noise, (120, 80)))
    return folder


def call(tool, capsys, *arguments):
    code = tool.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_there_and_back(files, tmp_path, capsys):
    small, out = tmp_path / 'attention.safetensors', tmp_path / 'attached.pth'
    images = ['--images', files / 'image.png', '--json']
    code, text, _ = call(
        extract,
        capsys,
        files / 'plugged.py',
        files / 'trained.pth',
        small,
        '--plain',
        files / 'plain.pth',
        '--metrics',
        'coco/bbox_mAP=0.5',
        *images,
    )
    result = json.loads(text)
    assert code == 0 and result['passed'] and result['images'][0]['largest'] == 0
    assert result['moved'] == dict(statistics=0, weights=0, not_in_file=0)
    assert result['bytes'] < 300_000

    trained = torch.load(files / 'trained.pth')['state_dict']
    for config in ('plugged.py', 'plain.py'):
        code, text, _ = call(
            attach, capsys, files / config, files / 'plain.pth', small, out, *images
        )
        result = json.loads(text)
        assert code == 0 and result['passed'] and result['same_base']
        assert result['images'][0]['largest'] == 0 < result['change'][0]['largest']
        written = torch.load(out)['state_dict']
        assert written.keys() == trained.keys()
        assert all(torch.equal(value, trained[key]) for key, value in written.items())

    code, text, _ = call(strip, capsys, files / 'plugged.py', files / 'trained.pth', out, *images)
    result = json.loads(text)
    assert code == 0 and result['passed'] and result['dropped'] == ['optimizer']
    assert result['images'][0]['largest'] == 0 < result['change'][0]['largest']
    plain, written = torch.load(files / 'plain.pth'), torch.load(out)
    assert written['meta']['epoch'] == 7 and 'optimizer' not in written
    assert list(written['state_dict']) == list(plain)
    assert all(torch.equal(value, plain[key]) for key, value in written['state_dict'].items())
    assert not list(tmp_path.glob('.*')), 'no half file'


def test_the_config_that_attach_prints_builds_the_model(files, tmp_path, capsys):
    small, out = tmp_path / 'attention.safetensors', tmp_path / 'attached.pth'
    call(extract, capsys, files / 'plugged.py', files / 'trained.pth', small)
    code, text, _ = call(attach, capsys, files / 'plain.py', files / 'plain.pth', small, out)
    assert code == 0 and 'the very weights that the layers were trained with' in text
    lines = text.split('a config for it:\n')[1]
    (tmp_path / 'made.py').write_text('\n'.join(line[4:] for line in lines.splitlines()))
    model, _ = load_model(tmp_path / 'made.py')
    trained = torch.load(files / 'trained.pth')['state_dict']
    assert model.state_dict().keys() == trained.keys()
    assert all(
        torch.equal(value, trained[key])
        for key, value in model.state_dict().items()
        if key in added_keys(model)
    )


def test_inspect(files, tmp_path, capsys):
    small = tmp_path / 'attention.safetensors'
    call(
        extract,
        capsys,
        files / 'plugged.py',
        files / 'trained.pth',
        small,
        '--licence',
        'CC0',
        '--metrics',
        'coco/bbox_mAP=0.5',
    )
    code, text, _ = call(inspect_file, capsys, small)
    assert code == 0
    for words in (
        'backbone.res2: kronattn_mm.EfficientAttention2d(key_channels=4',
        'backbone.layer4: kronattn_mm.ShiftBalanceConv2d',
        ', 5 convolutions',
        'neck.fpn1: NonLocal2d(reduction=2',
        'for: RetinaNet of plugged.py',
        'base moved during training: not known',
        'licence: CC0',
        'coco/bbox_mAP 0.5',
        f'torch {torch.__version__}',
    ):
        assert words in text, words
    code, text, _ = call(inspect_file, capsys, files / 'trained.pth')
    assert code == 0 and 'backbone.res3' in text and 'backbone.layer4.0.conv1' in text
    assert 'its config has kronattn_mm' in text and 'epoch: 7' in text
    code, text, _ = call(inspect_file, capsys, files / 'plain.pth', '--json')
    assert code == 1 and json.loads(text)['layers'] == []


class Trap:
    def __reduce__(self):
        return open, (Trap.path, 'w')


def test_inspect_runs_nothing(tmp_path, capsys):
    Trap.path = str(tmp_path / 'opened')
    file = tmp_path / 'trap.pth'
    torch.save(dict(state_dict={'a.weight': torch.ones(3)}, message_hub=Trap()), file)
    code, text, _ = call(inspect_file, capsys, file)
    assert code == 1 and '1 tensors, 3 values' in text and 'also in it: message_hub' in text
    torch.save(
        dict(state_dict={'a.weight': torch.ones(3)}, message_hub=Trap()),
        file,
        _use_new_zipfile_serialization=False,
    )
    assert call(inspect_file, capsys, file)[0] == 1
    assert not Path(Trap.path).exists()
    pickle.loads(pickle.dumps(Trap())).close()
    assert Path(Trap.path).exists(), 'the trap is one'


def test_mistakes_are_one_sentence(files, tmp_path, capsys):
    small, out = tmp_path / 'attention.safetensors', tmp_path / 'out.pth'
    assert call(extract, capsys, files / 'plugged.py', files / 'trained.pth', small)[0] == 0
    (tmp_path / 'cut.safetensors').write_bytes(small.read_bytes()[:-9])
    (tmp_path / 'cut.pth').write_bytes((files / 'trained.pth').read_bytes()[:-900])
    (tmp_path / 'empty.pth').touch()
    (tmp_path / 'other.py').write_text(CONFIG.replace('num_classes=2', 'num_classes=3'))
    moved = torch.load(files / 'trained.pth')
    moved['state_dict']['bbox_head.retina_cls.bias'] += 1
    torch.save(moved, tmp_path / 'moved.pth')
    plugged, plain = files / 'plugged.py', files / 'plain.pth'
    for tool, arguments, message in (
        (extract, (files / 'none.py', plain, out), 'there is no config file'),
        (extract, (plugged, tmp_path / 'none.pth', out), 'there is no checkpoint'),
        (extract, (plugged, tmp_path / 'empty.pth', out), 'EOFError'),
        (extract, (plugged, tmp_path / 'cut.pth', out), 'may be truncated'),
        (extract, (plugged, plain, out), 'keys missing, such as backbone.layer4.0.conv1.att'),
        (extract, (files / 'plain.py', plain, out), 'nothing is inserted into this RetinaNet'),
        (
            extract,
            (plugged, tmp_path / 'moved.pth', out, '--plain', plain),
            'the base moved: 0 statistics of batch norms and 1 weights',
        ),
        (extract, (plugged, files / 'trained.pth', out, '--images', 'none.jpg'), 'none.jpg'),
        (attach, (plugged, plain, tmp_path / 'cut.safetensors', out), 'may be truncated'),
        (attach, (tmp_path / 'other.py', plain, small, out), 'does not fit the config: 2 tens'),
        (attach, (plugged, plain, plain, out), 'cannot be read as a safetensors file'),
        (strip, (files / 'plain.py', plain, out), 'inserts nothing'),
        (strip, (plugged, small, out), '120 keys missing, such as backbone.conv1.weight'),
        (inspect_file, (tmp_path / 'cut.pth',), 'may be truncated'),
        (inspect_file, (tmp_path / 'cut.safetensors',), 'may be truncated'),
        (inspect_file, (tmp_path / 'nothing',), 'there is no file'),
    ):
        code, _, error = call(tool, capsys, *arguments)
        last = error.strip().splitlines()[-1]
        assert code == 2 and ': error: ' in last and message in last, (arguments, last)
        assert 'Traceback' not in error
    (tmp_path / 'cut.safetensors').unlink()
    small.unlink()
    out.unlink(missing_ok=True)


def test_what_is_read_is_never_replaced(files, tmp_path, capsys):
    for name in ('plain.py', 'plugged.py', 'plain.pth', 'trained.pth'):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    config, trained, plain = (
        tmp_path / name for name in ('plugged.py', 'trained.pth', 'plain.pth')
    )
    small, out = tmp_path / 'a.safetensors', tmp_path / 'out.pth'
    assert call(extract, capsys, config, trained, small)[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for tool, arguments, message in (
        (extract, (config, trained, trained), 'that is read; name another file'),
        (extract, (config, trained, plain, '--plain', plain), 'that is read'),
        (extract, (config, trained, tmp_path), 'is a folder; name the file to write'),
        (attach, (config, plain, small, plain), 'that is read'),
        (attach, (config, plain, small, small), 'that is read'),
        (attach, (config, plain, small, out, '--images', config), 'cannot be read'),
        (strip, (config, trained, trained), 'that is read'),
        (strip, (config, trained, out, '--images', 'no.jpg'), 'does not exist'),
    ):
        code, _, error = call(tool, capsys, *arguments)
        assert code == 2 and message in error, error
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before, arguments


def test_a_difference_is_an_exit_code(files, tmp_path, capsys, monkeypatch):
    real = extract.load_attention

    def spoilt(model, content):
        real(model, content)
        with torch.no_grad():
            model.backbone.attention.res2.reprojection.bias += 1e-3

    monkeypatch.setattr(extract, 'load_attention', spoilt)
    arguments = [
        files / 'plugged.py',
        files / 'trained.pth',
        tmp_path / 'a.safetensors',
        '--images',
        files / 'image.png',
    ]
    code, text, error = call(extract, capsys, *arguments)
    assert code == 1 and 'largest difference' in text and 'above the tolerance of 0' in error
    assert call(extract, capsys, *arguments, '--tolerance', '100')[0] == 0


@pytest.mark.slow
def test_as_scripts(files, tmp_path):
    small = tmp_path / 'attention.safetensors'
    tools = ROOT / 'tools' / 'model_converters'
    for arguments in (
        ['extract_attention.py', files / 'plugged.py', files / 'trained.pth', small],
        ['attach_attention.py', files / 'plain.py', files / 'plain.pth', small, tmp_path / 'a.pth'],
        ['strip_attention.py', files / 'plugged.py', tmp_path / 'a.pth', tmp_path / 'b.pth'],
        ['inspect_attention.py', small],
        ['inspect_attention.py', '--help'],
    ):
        done = subprocess.run(
            [sys.executable, tools / arguments[0], *map(str, arguments[1:])],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout
