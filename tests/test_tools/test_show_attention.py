"""The tool from the command line: pictures for good input, one clear sentence for bad."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip('mmdet')
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / 'tools' / 'analysis_tools' / 'show_attention.py'

ATTENTION = "dict(type='kronattn_mm.EfficientAttention2d', key_channels=8, value_channels=8)"
DETECTOR = f"""
default_scope = 'mmdet'
custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
attention = {ATTENTION}
model = dict(
    type='RetinaNet',
    data_preprocessor=dict(type='DetDataPreprocessor', mean=[120.] * 3, std=[60.] * 3,
                           bgr_to_rgb=True, pad_size_divisor=32),
    backbone=dict(type='kronattn_mm.Plugged', base='mmdet.ResNet', depth=18, base_channels=8,
                  insert=[dict(at='res4', layer=dict(type='NonLocal2d'))]),
    neck=dict(type='kronattn_mm.Plugged', base='mmdet.FPN', in_channels=[8, 16, 32, 64],
              out_channels=16, num_outs=5, insert=[dict(at='fpn1-5', layer=attention)]),
    bbox_head=dict(type='RetinaHead', num_classes=2, in_channels=16, feat_channels=16,
                   stacked_convs=1),
    test_cfg=dict(nms_pre=100, min_bbox_size=0, score_thr=0.5, max_per_img=5,
                  nms=dict(type='nms', iou_threshold=0.5)))
test_dataloader = dict(dataset=dict(type='RepeatDataset', dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(160, 96), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs')])))
"""
SEGMENTER = f"""
default_scope = 'mmseg'
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(type='SegDataPreProcessor', mean=[120.] * 3, std=[60.] * 3,
                           bgr_to_rgb=True, size_divisor=32, test_cfg=dict(size_divisor=32)),
    backbone=dict(type='kronattn_mm.Plugged', base='mmseg.ResNet', depth=18, base_channels=8,
                  insert=[dict(at='res2', layer={ATTENTION})]),
    decode_head=dict(type='FCNHead', in_channels=64, channels=8, num_convs=1, concat_input=False,
                     num_classes=3, norm_cfg=dict(type='BN')),
    test_cfg=dict(mode='whole'))
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(160, 96), keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')]
"""
CLASSIFIER = f"""
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(mean=[120.] * 3, std=[60.] * 3, to_rgb=True, num_classes=4),
    backbone=dict(type='kronattn_mm.Plugged', base='mmpretrain.ResNet', depth=18,
                  base_channels=8, stem_channels=8, insert=[dict(at='res3', layer={ATTENTION})]),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(type='LinearClsHead', num_classes=4, in_channels=64))
test_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=72, edge='short'),
    dict(type='CenterCrop', crop_size=64),
    dict(type='PackInputs')]))
"""


@pytest.fixture(autouse=True, scope='module')
def one_thread():
    """Tensors here are so small that handing them to more threads costs more than it saves."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make(folder: Path, name: str, text: str) -> tuple[str, str]:
    """Write a config and random weights for it."""
    config = folder / f'{name}.py'
    config.write_text(text)
    parsed = Config.fromfile(str(config))
    init_default_scope(parsed.default_scope)
    torch.manual_seed(0)
    checkpoint = folder / f'{name}.pth'
    torch.save(dict(state_dict=MODELS.build(parsed.model).state_dict(), meta={}), checkpoint)
    return str(config), str(checkpoint)


def photograph(path: Path, height: int, width: int) -> str:
    rows, columns = np.mgrid[:height, :width]
    image = np.stack([rows * 3 % 256, columns * 2 % 256, (rows + columns) % 256], axis=2)
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(image.astype(np.uint8)).save(path)
    return str(path)


@pytest.fixture(scope='module')
def detector(tmp_path_factory) -> tuple[str, str]:
    return make(tmp_path_factory.mktemp('detector'), 'retinanet', DETECTOR)


@pytest.fixture(scope='module')
def tool():
    from kronattn_mm.cli import show

    return show


@pytest.fixture
def refused(tool, capsys, tmp_path, monkeypatch):
    """Run the tool, expect it to refuse, and return what it said."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        assert tool.main([*arguments, '--out-dir', 'pictures']) == 2
        said = capsys.readouterr().err
        assert 'Traceback' not in said
        assert not list(Path('.').rglob('*_*.png')) and not list(Path('.').rglob('*.tmp'))
        line = [line for line in said.splitlines() if line.startswith('kronattn show: error')]
        assert len(line) == 1, said
        return line[0]

    return run


def picture_of(path: Path) -> np.ndarray:
    picture = np.array(Image.open(path))
    assert picture.ndim == 3 and picture.shape[2] == 3 and picture.shape[1] >= 700
    assert picture.std() > 20
    return picture


def test_pictures_from_the_command_line(detector, tmp_path):
    images = [
        photograph(tmp_path / 'a' / 'cat.png', 50, 90),
        photograph(tmp_path / 'b' / 'cat.jpg', 96, 60),
    ]
    finished = subprocess.run(
        [sys.executable, str(TOOL), *detector, *images, '--maps', '3', '--out-dir', 'pictures'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
    )
    assert finished.returncode == 0, finished.stderr
    written = sorted(path.name for path in (tmp_path / 'pictures').iterdir())
    assert written == ['cat-2_neck.fpn1.png', 'cat_neck.fpn1.png']
    for name in written:
        assert f'wrote pictures/{name}' in finished.stdout
        picture_of(tmp_path / 'pictures' / name)
    assert 'warning' not in finished.stderr


def test_help_has_an_example(tool, capsys):
    with pytest.raises(SystemExit) as end:
        tool.main(['--help'])
    assert end.value.code == 0
    assert 'example:\n  kronattn show' in capsys.readouterr().out


def test_a_segmenter_and_a_classifier(tool, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    image = photograph(tmp_path / 'in' / 'street.png', 50, 90)
    for name, text, layer in (
        ('fcn', SEGMENTER, 'backbone.res2'),
        ('resnet', CLASSIFIER, 'backbone.res3'),
    ):
        pytest.importorskip(text.split("default_scope = '")[1].split("'")[0])
        assert tool.main([*make(tmp_path, name, text), image, '--out-dir', name]) == 0, (
            capsys.readouterr().err
        )
        picture_of(tmp_path / name / f'street_{layer}.png')


def test_a_sliding_window_is_said_to_be_one(tool, tmp_path, monkeypatch, capsys):
    pytest.importorskip('mmseg')
    monkeypatch.chdir(tmp_path)
    image = photograph(tmp_path / 'in' / 'street.png', 96, 160)
    text = SEGMENTER.replace("mode='whole'", "mode='slide', crop_size=(64, 64), stride=(48, 48)")
    assert tool.main([*make(tmp_path, 'fcn', text), image]) == 0
    assert 'first window is shown' in capsys.readouterr().err


def test_settings_and_layer_can_be_chosen(tool, detector, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    image = photograph(tmp_path / 'in' / 'cat.png', 50, 90)
    recorded = []
    draw = tool.show

    def show(model, pipeline, *rest):
        recorded.append(pipeline.transforms[1].scale)
        return draw(model, pipeline, *rest)

    monkeypatch.setattr(tool, 'show', show)
    assert (
        tool.main(
            [
                *detector,
                image,
                '--layer',
                'neck.fpn3',
                '--maps',
                '100',
                '--cfg-options',
                'test_dataloader.dataset.dataset.pipeline.1.scale=(80,64)',
            ]
        )
        == 0
    )
    assert recorded == [(80, 64)]
    picture_of(tmp_path / 'out' / 'attention_maps' / 'cat_neck.fpn3.png')


def test_the_same_call_gives_the_same_file(tool, detector, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    image = photograph(tmp_path / 'in' / 'cat.png', 50, 90)
    for folder in ('first', 'second'):
        assert tool.main([*detector, image, '--maps', '2', '--out-dir', folder]) == 0
    name = 'cat_neck.fpn1.png'
    assert Path('first', name).read_bytes() == Path('second', name).read_bytes()


def test_untrained_attention_is_marked(tool, detector, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config, checkpoint = detector
    image = photograph(tmp_path / 'in' / 'cat.png', 50, 90)
    weights = torch.load(checkpoint)['state_dict']
    plain = {f'module.{key}': value for key, value in weights.items() if 'attention' not in key}
    torch.save(plain, 'plain.pth')  # as a wrapped model saves it, and without the attention
    warnings = []
    draw = tool.show
    monkeypatch.setattr(tool, 'show', lambda *rest: warnings.append(rest[-1]) or draw(*rest))
    assert tool.main([config, 'plain.pth', image]) == 0
    said = capsys.readouterr().err
    assert "'plain.pth' has no weights for backbone.res4, neck.fpn1" in said
    assert 'random weights' in said
    assert warnings == ['untrained: the checkpoint has no weights for neck.fpn1']


def test_outputs_never_collide(tool):
    images = ['a/x.jpg', 'b/x.png', 'x-2.jpg', 'c/X.jpg', 'y.jpg']
    names = [path.name for path in tool.output_paths(images, 'l', Path('o'))]
    assert names == ['x_l.png', 'x-3_l.png', 'x-2_l.png', 'X-4_l.png', 'y_l.png']


def test_bad_images_are_named_before_anything_is_computed(refused, tmp_path):
    good = photograph(tmp_path / 'in' / 'good.jpg', 80, 80)
    content = Path(good).read_bytes()
    (tmp_path / 'half.jpg').write_bytes(content[: len(content) // 2])
    (tmp_path / 'text.png').write_text('not an image')
    # The config does not exist either: the images come first.
    assert "'missing.jpg' does not exist" in refused('no.py', 'no.pth', good, 'missing.jpg')
    assert "'half.jpg'" in refused('no.py', 'no.pth', 'half.jpg')
    assert "'text.png'" in refused('no.py', 'no.pth', good, 'text.png')
    assert "'in' is a folder" in refused('no.py', 'no.pth', 'in')


def test_bad_configs_are_named(refused, detector, tmp_path):
    image = photograph(tmp_path / 'in' / 'cat.png', 50, 90)
    assert "config 'no.py' does not exist" in refused('no.py', 'no.pth', image)
    (tmp_path / 'broken.py').write_text('model = dict(')
    assert "config 'broken.py' cannot be read" in refused('broken.py', 'no.pth', image)
    (tmp_path / 'empty.py').write_text('a = 1')
    assert "config 'empty.py' has no model" in refused('empty.py', 'no.pth', image)
    text = DETECTOR.replace('fpn1-5', 'fpn9')
    (tmp_path / 'point.py').write_text(text)
    assert 'fpn9' in refused('point.py', 'no.pth', image)


def test_bad_layers_are_named(refused, detector, tmp_path):
    image = photograph(tmp_path / 'in' / 'cat.png', 50, 90)
    said = refused(*detector, image, '--layer', 'neck.fnp2')
    assert "no inserted layer 'neck.fnp2'; did you mean 'neck.fpn2'?" in said
    assert 'neck.fpn1, neck.fpn2, neck.fpn3, neck.fpn4, neck.fpn5' in said
    assert 'NonLocal2d' in refused(*detector, image, '--layer', 'backbone.res4')


def test_bad_checkpoints_are_named(refused, detector, tmp_path):
    config, checkpoint = detector
    image = photograph(tmp_path / 'in' / 'cat.png', 50, 90)
    assert "checkpoint 'none' does not exist" in refused(config, 'none', image)
    content = Path(checkpoint).read_bytes()
    (tmp_path / 'half.pth').write_bytes(content[: len(content) // 2])
    assert "checkpoint 'half.pth' cannot be read" in refused(config, 'half.pth', image)
    (tmp_path / 'text.pth').write_text('no checkpoint')
    assert "checkpoint 'text.pth' cannot be read" in refused(config, 'text.pth', image)
    torch.save([1, 2], tmp_path / 'list.pth')
    assert "checkpoint 'list.pth' holds no state_dict" in refused(config, 'list.pth', image)

    weights = torch.load(checkpoint)['state_dict']
    torch.save(
        {key: value for key, value in weights.items() if 'lateral' not in key},
        tmp_path / 'less.pth',
    )
    assert 'keys missing, such as neck.lateral_convs' in refused(config, 'less.pth', image)
    torch.save(
        {**weights, 'neck.attention.out9.keys.weight': torch.zeros(1)}, tmp_path / 'more.pth'
    )
    assert 'attention keys that the config has no layer for' in refused(config, 'more.pth', image)
    said = refused(config, checkpoint, image, '--cfg-options', 'model.bbox_head.num_classes=3')
    assert f"checkpoint '{checkpoint}' does not fit the config" in said
    assert 'of another shape, such as bbox_head.retina_cls' in said


def test_bad_devices_and_folders_are_named(refused, detector, tmp_path):
    image = photograph(tmp_path / 'in' / 'cat.png', 50, 90)
    assert "device 'gpu'" in refused(*detector, image, '--device', 'gpu')
    (tmp_path / 'pictures').write_text('a file')
    assert "'pictures' cannot be made a folder" in refused(*detector, image)


def test_the_number_of_maps_is_checked(tool, capsys):
    with pytest.raises(SystemExit) as end:
        tool.main(['c.py', 'c.pth', 'i.jpg', '--maps', '0'])
    assert end.value.code == 2
    assert '--maps must be at least 1, got 0' in capsys.readouterr().err


def test_a_failed_write_leaves_nothing(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(os, 'replace', lambda *_: (_ for _ in ()).throw(OSError('disk full')))
    with pytest.raises(OSError, match='disk full'):
        tool.write_png(np.zeros((4, 4, 3), np.uint8), tmp_path / 'a.png')
    assert not list(tmp_path.iterdir())
