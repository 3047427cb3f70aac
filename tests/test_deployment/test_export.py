"""kronattn export: the file computes what the model computes, or there is no file."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from kronattn_mm.cli.export import main

pytest.importorskip('mmpretrain')
onnx = pytest.importorskip('onnx')
runtime = pytest.importorskip('onnxruntime')
pytest.importorskip('onnxscript')

ROOT = Path(__file__).resolve().parents[2]
SHAPE = ('--shape', '40', '48')


def scores_of(config: Path, checkpoint: Path, images: np.ndarray) -> np.ndarray:
    """What mmpretrain's own model makes of BGR images."""
    from mmengine.registry import DefaultScope

    from kronattn_mm.cost.config import load_model

    model, _ = load_model(config)
    model.load_state_dict(torch.load(checkpoint)['state_dict'])
    model.eval()
    with DefaultScope.overwrite_default_scope('mmpretrain'), torch.no_grad():
        data = model.data_preprocessor(
            dict(inputs=[torch.from_numpy(image) for image in images], data_samples=None)
        )
        return model(data['inputs'], mode='tensor').numpy()


def test_a_classifier_with_its_preprocessing(classifier, tmp_path, capsys):
    config, checkpoint = classifier
    out = tmp_path / 'new' / 'scores.onnx'
    arguments = [str(config), str(checkpoint), '--out', str(out), '--normalize', *SHAPE]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert 'made images are taken' in captured.err
    assert '2x3x40x48' in captured.out and '3x3x45x51' in captured.out  # the odd one
    assert 'batch, height, width left open' in captured.out
    assert list(out.parent.iterdir()) == [out]

    session = runtime.InferenceSession(str(out))
    assert session.get_inputs()[0].shape == ['batch', 3, 'height', 'width']
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 33, 70), dtype=np.uint8)
    (scores,) = session.run(['scores'], {'image': images.astype(np.float32)})
    np.testing.assert_allclose(scores, scores_of(config, checkpoint, images), rtol=1e-3, atol=1e-4)

    facts = {item.key: item.value for item in onnx.load(out).metadata_props}
    assert json.loads(facts['classes']) == ['ant', 'bee', 'cat']
    assert facts['config'] == str(config) and facts['part'] == 'outputs'
    assert json.loads(facts['input'])['normalized_inside'] is True
    assert json.loads(facts['input'])['order'] == 'RGB'
    assert {node.op_type for node in onnx.load(out).graph.node}.isdisjoint({'BatchNormalization'})


def test_fixed_sizes_and_no_file_where_it_is_too_far(classifier, tmp_path, capsys):
    config, checkpoint = classifier
    out = tmp_path / 'scores.onnx'
    arguments = [str(config), str(checkpoint), '--out', str(out), '--no-fuse', *SHAPE]
    arguments += ['--fix', 'batch', 'height', 'width']
    out.write_text('from before')
    assert main([*arguments, '--tolerance', '0']) == 1
    assert 'no file was written' in capsys.readouterr().err
    assert out.read_text() == 'from before', 'a failed run loses nothing'
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        'model.py',
        'scores.onnx',
        'weights.pth',
    ]
    assert main([*arguments, '--json']) == 0
    content = json.loads(capsys.readouterr().out)
    assert content['largest_relative_difference'] < 1e-5
    assert {tuple(row['images']) for row in content['agreements']} == {(1, 3, 40, 48)}
    assert runtime.InferenceSession(str(out)).get_inputs()[0].shape == [1, 3, 40, 48]


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--batch', '2'], '--batch goes with --fix batch'),
        (['--out', 'model.pt'], '--out must end with .onnx, got model.pt'),
        (['--tolerance', '-1'], 'invalid number of at least 0'),
        (['--fix', 'depth'], "invalid choice: 'depth'"),
        (['--fix', 'height', 'width', '--check-shape', '3', '3'], '--check-shape has no use'),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(['config.py', 'weights.pth', *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_what_does_not_fit(classifier, tmp_path, capsys, monkeypatch):
    config, checkpoint = classifier
    state = torch.load(checkpoint)
    del state['state_dict']['head.fc.weight']
    torch.save(state, checkpoint)
    out = ['--out', str(tmp_path / 'x.onnx')]
    for arguments, message in (
        ([str(config), str(checkpoint), *out], 'does not fit the config: 1 keys missing, such as'),
        ([str(config), 'nowhere.pth', *out], 'there is no checkpoint nowhere.pth'),
        ([str(config.with_name('modle.py')), str(checkpoint), *out], 'did you mean'),
        ([str(config), str(checkpoint), *out, '--images', 'a.jpg'], "image 'a.jpg' does not exist"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    assert main([str(config), str(checkpoint), *out]) == 2
    assert 'pip install onnx onnxscript onnxruntime' in capsys.readouterr().err
    assert not (tmp_path / 'x.onnx').exists()


def test_a_model_without_a_graph_is_named(classifier, tmp_path, capsys, monkeypatch):
    """What depends on the values of an image cannot be a graph."""
    from kronattn_mm.layers import KroneckerAttention2d

    def forward(self, x):
        return x if x.sum() > 0 else -x

    monkeypatch.setattr(KroneckerAttention2d, 'forward', forward)
    out = tmp_path / 'x.onnx'
    assert main([*map(str, classifier), '--out', str(out), *SHAPE, '--fix', 'batch']) == 1
    assert 'no graph can be made of this model' in capsys.readouterr().err
    assert not out.exists()


# -- the networks of the papers ------------------------------------------------------------------

NETWORKS = {
    'ssd_sb': (
        'shift_and_balance/ssd/small/ssd_mobilenetv2-x0.5-sb_bccd.py',
        'bccd_mini/VOC2007/JPEGImages',
        [],
        {'cls_score_0', 'bbox_pred_3'},
    ),
    'deeplab_kao_qkv': (
        'kronecker_attention/segmentation/deeplabv2_mobilenet-v2-d16_kao-qkv_120_voc-161x161.py',
        'seg_mini/images/val',
        [],
        {'scores'},
    ),
    'mask_rcnn_ea': (
        'efficient_attention/mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco.py',
        'coco_mini/val',
        ['--shape', '192', '256'],
        {'level0', 'level1', 'level2', 'level3', 'level4'},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', NETWORKS)
def test_networks_agree_at_three_sizes(name, shared, write_model, tmp_path, capsys):
    pytest.importorskip('mmdet')
    pytest.importorskip('mmseg')
    path, folder, arguments, outputs = NETWORKS[name]
    config, checkpoint = write_model(ROOT / 'configs' / path)
    images = sorted(map(str, (shared / 'data' / folder).glob('*.jpg')))[:3]
    out = tmp_path / 'model.onnx'
    assert len(images) == 3
    code = main(
        [str(config), str(checkpoint), '--out', str(out), '--json', *arguments, '--images', *images]
    )
    captured = capsys.readouterr()
    assert code == 0, captured.err
    content = json.loads(captured.out)
    sizes = {tuple(row['images']) for row in content['agreements']}
    assert len(sizes) == 3 and any(height % 2 and width % 2 for *_, height, width in sizes)
    assert outputs <= {row['output'] for row in content['agreements']}
    assert content['largest_relative_difference'] < 1e-4
    assert content['images'] == '--images'
    if name == 'mask_rcnn_ea':
        assert 'backbone and neck are what is exported: its second stage' in captured.err
        assert main([str(config), str(checkpoint), '--out', str(out), '--part', 'outputs']) == 2
        assert 'give --part features' in capsys.readouterr().err


def test_images_of_the_test_set_are_taken(classifier_text, tmp_path):
    from PIL import Image

    from kronattn_mm.cost.config import load_config
    from kronattn_mm.deployment.images import batch_of, images_of_test_set

    folder = tmp_path / 'set' / 'ant'
    folder.mkdir(parents=True)
    Image.new('RGB', (20, 10), (200, 100, 50)).save(folder / '1.png')
    text = classifier_text.replace("data_root='nowhere'", f'data_root={str(folder.parent)!r}')
    text = text.replace("classes=['ant', 'bee', 'cat']", "classes=['ant']")
    config = tmp_path / 'set.py'
    config.write_text(text)
    images = images_of_test_set(load_config(config), 3)
    batch = batch_of(images, 2, (4, 6))
    assert batch.shape == (2, 3, 4, 6)
    assert batch[1, :, 0, 0].tolist() == [50, 100, 200], 'BGR, as the pipelines read'
