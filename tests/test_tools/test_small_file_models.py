"""extract and attach are the identity on real photographs, for whole models of three libraries."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip('mmdet')
pytest.importorskip('safetensors')

from kronattn_mm import load_attention, plug_from_file, unplug
from kronattn_mm.cli import attach, extract, strip
from kronattn_mm.cost.config import load_model
from kronattn_mm.plugging.removal import added_keys

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
DEEPLAB = """
_base_ = '{base}'
model = dict(backbone=dict(type='kronattn_mm.Plugged', base={{{{_base_.model.backbone.type}}}},
                           insert=[dict(at='layer4+layer7', layer=dict(
                               type='kronattn_mm.KroneckerAttention2d'))]))
""".format(
    base=CONFIGS
    / 'kronecker_attention'
    / 'segmentation'
    / 'deeplabv2_mobilenet-v2-d16_aspp_120_camvid-161x161.py'
)
MODELS = {
    'mask-rcnn-ea': CONFIGS
    / 'efficient_attention'
    / 'mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco.py',
    'mask-rcnn-non-local': CONFIGS
    / 'efficient_attention'
    / 'mask-rcnn_r50_fpn_nonlocal2d-res4_1x_coco.py',
    'ssd-shift-balance': CONFIGS
    / 'shift_and_balance'
    / 'ssd'
    / 'ssd_mobilenetv2-x0.5-sb_1xb32-200e_voc0712.py',
    'deeplab-kronecker': DEEPLAB,
}


@pytest.fixture(scope='module')
def photographs(shared: Path) -> list[str]:
    return [str(path) for path in sorted((shared / 'data/coco_mini/val').glob('*.jpg'))[:2]]


def run(tool, capsys, *arguments):
    code = tool.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


@pytest.mark.slow
@pytest.mark.parametrize('model', MODELS.values(), ids=list(MODELS))
def test_identity(model, photographs, tmp_path, capsys):
    config = model
    if isinstance(model, str):
        pytest.importorskip('mmseg')
        config = tmp_path / 'config.py'
        config.write_text(model)
    small_images = (
        [
            '--cfg-options',
            'test_dataloader.dataset.pipeline.1.scale=(320,256)',
            'model.test_cfg.rpn.max_per_img=20',
        ]
        if isinstance(model, Path) and 'mask' in model.name
        else []
    )
    built, _ = load_model(config)
    ours = set(added_keys(built))
    state = built.state_dict()
    for key in ours:
        if key.endswith('running_var'):
            state[key].uniform_(0.5, 1.5)
        elif state[key].is_floating_point():
            state[key].normal_(std=0.02)
    torch.save(dict(state_dict=state), tmp_path / 'trained.pth')
    torch.save(
        dict(state_dict={key: value for key, value in state.items() if key not in ours}),
        tmp_path / 'plain.pth',
    )
    small, out = tmp_path / 'attention.safetensors', tmp_path / 'out.pth'
    checks = ['--json', '--images', *photographs, *small_images]
    found = run(
        extract,
        capsys,
        config,
        tmp_path / 'trained.pth',
        small,
        '--plain',
        tmp_path / 'plain.pth',
        *checks,
    )
    assert [image['largest'] for image in found['images']] == [0, 0]
    assert found['images'][0]['scale'] > 0
    found = run(attach, capsys, config, tmp_path / 'plain.pth', small, out, *checks)
    assert [image['largest'] for image in found['images']] == [0, 0]
    assert found['same_base'] and found['change'][0]['largest'] != 0
    found = run(strip, capsys, config, tmp_path / 'trained.pth', out, *checks)
    assert [image['largest'] for image in found['images']] == [0, 0]


@pytest.mark.slow
def test_a_plain_inferencer_is_plugged_without_a_config(photographs, tmp_path):
    from mmdet.apis import DetInferencer
    from mmengine.config import Config

    config = MODELS['mask-rcnn-ea'].with_name('mask-rcnn_r50_fpn_32xb2-24e_coco.py')
    plugged, _ = load_model(MODELS['mask-rcnn-ea'])
    ours = set(added_keys(plugged))
    state = plugged.state_dict()
    for key in ours:
        state[key].copy_(torch.randn_like(state[key]) * 0.05)
    from kronattn_mm import save_attention

    save_attention(plugged, tmp_path / 'attention.safetensors')
    content = Config.fromfile(config)
    content.model.backbone.init_cfg = None
    content.model.test_cfg.rcnn.update(score_thr=0.0, max_per_img=20)
    content.test_dataloader.dataset.pipeline[1].scale = (320, 256)
    content.dump(tmp_path / 'plain.py')
    torch.save(
        dict(
            state_dict={key: value for key, value in state.items() if key not in ours},
            meta=dict(dataset_meta=dict(classes=[str(i) for i in range(80)])),
        ),
        tmp_path / 'plain.pth',
    )
    inferencer = DetInferencer(
        str(tmp_path / 'plain.py'), str(tmp_path / 'plain.pth'), device='cpu', show_progress=False
    )
    before = inferencer(photographs[0])['predictions'][0]
    assert plug_from_file(inferencer.model, tmp_path / 'attention.safetensors').same_base
    after = inferencer(photographs[0])['predictions'][0]
    assert after['scores'] != before['scores']
    assert load_attention(inferencer.model, tmp_path / 'attention.safetensors').loaded == 56
    unplug(inferencer.model)
    assert inferencer(photographs[0])['predictions'][0]['scores'] == before['scores']
