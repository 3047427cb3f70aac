"""ablate on a small detector and a made set: every row is an evaluation that can be repeated."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

pytest.importorskip('mmdet')

from kronattn_mm.cli import ablate
from kronattn_mm.cost.config import load_model
from kronattn_mm.plugging.removal import added_keys

CONFIG = """
default_scope = 'mmdet'
ea = dict(type='kronattn_mm.EfficientAttention2d', key_channels=4, value_channels=4)
model = dict(
    type='RetinaNet',
    data_preprocessor=dict(type='DetDataPreprocessor', mean=[120.] * 3, std=[60.] * 3,
                           pad_size_divisor=32),
    backbone=dict(type='kronattn_mm.Plugged', base='mmdet.ResNet', depth=18, base_channels=8,
                  out_indices=(1, 2, 3), insert=[dict(at='res3', layer=ea)],
                  convs=[dict(at='layer4', layer=dict(type='kronattn_mm.ShiftBalanceConv2d'))]),
    neck=dict(type='kronattn_mm.Plugged', base='mmdet.FPN', in_channels=[16, 32, 64],
              out_channels=16, num_outs=3, insert=[dict(at='fpn1', layer=ea)]),
    bbox_head=dict(type='RetinaHead', num_classes=2, in_channels=16, feat_channels=16,
                   stacked_convs=1, anchor_generator=dict(
                       type='AnchorGenerator', octave_base_scale=4, scales_per_octave=1,
                       ratios=[1.], strides=[8, 16, 32])),
    test_cfg=dict(nms_pre=50, score_thr=0., max_per_img=20, nms=dict(type='nms',
                                                                     iou_threshold=0.5)))
test_pipeline = [
    dict(type='LoadImageFromFile'), dict(type='Resize', scale=(96, 96)),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs',
         meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))]
test_dataloader = dict(
    batch_size=4, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='CocoDataset', data_root='{data}/', ann_file='val.json',
                 data_prefix=dict(img='val/'), test_mode=True, pipeline=test_pipeline,
                 metainfo=dict(classes=('disc', 'box'))))
test_evaluator = dict(type='ScoreSum')
test_cfg = dict(type='TestLoop')
default_hooks = dict(visualization=dict(type='DetVisualizationHook'),
                     checkpoint=dict(type='CheckpointHook', interval=1))
custom_hooks = [dict(type='kronattn_mm.FreezeHook')]
visualizer = dict(type='DetLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
custom_imports = dict(imports=['score_sum'], allow_failed_imports=False)
"""
METRIC = """
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS

@METRICS.register_module(force=True)
class ScoreSum(BaseMetric):
    # A measure that every change of the model changes.
    def process(self, data_batch, data_samples):
        self.results += [float(sample['pred_instances']['scores'].sum())
                         for sample in data_samples]

    def compute_metrics(self, results):
        return dict(score=sum(results), pictures=len(results))
"""


@pytest.fixture
def files(tmp_path, made_set, monkeypatch):
    (tmp_path / 'score_sum.py').write_text(METRIC)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / 'config.py'
    path.write_text(CONFIG.replace('{data}', str(made_set)))
    torch.manual_seed(2)
    model, _ = load_model(path)
    state = model.state_dict()
    ours = set(added_keys(model))
    for key in ours:
        if state[key].is_floating_point():
            state[key].copy_(torch.rand_like(state[key]) * 0.2 + 0.05)
    torch.save(dict(state_dict=state), tmp_path / 'trained.pth')
    torch.save(
        dict(state_dict={key: value for key, value in state.items() if key not in ours}),
        tmp_path / 'plain.pth',
    )
    return tmp_path


def run(files: Path, *arguments: object) -> dict:
    out = files / 'out'
    code = ablate.main(
        [
            str(argument)
            for argument in (
                files / 'config.py',
                files / 'trained.pth',
                '--out-dir',
                out,
                *arguments,
            )
        ]
    )
    assert code == 0
    assert {path.name for path in out.iterdir()} <= {'ablation.json', 'ablation.png', 'log'}
    with Image.open(out / 'ablation.png') as picture:
        picture.load()
        assert picture.width > 500
    return json.loads((out / 'ablation.json').read_text())


def test_all_rows(files, capsys):
    content = run(files, '--plain', files / 'plain.pth', '--strength', '0,0.5,1')
    scores = {row['setting']: row['metrics']['score'] for row in content['results']}
    assert list(scores) == [
        'all on',
        'all off',
        'backbone.res3 off',
        'neck.fpn1 off',
        'convs layer4 off',
        'strength 0',
        'strength 0.5',
        'strength 1',
    ]
    assert all(row['metrics']['pictures'] == 4 for row in content['results'])
    assert scores['strength 0'] == pytest.approx(scores['all off'], rel=1e-5)
    assert scores['strength 1'] == scores['all on']
    singles = [scores[name] for name in list(scores)[:5]]
    assert len({round(score, 6) for score in singles}) == 5, 'each row switches something else'
    text = capsys.readouterr()
    assert '"all off" is the plain model: the rest did not move' in text.out
    line = f'convs layer4 off {scores["convs layer4 off"]:.4g} ({singles[4] - singles[0]:+.4g})'
    assert line in ' '.join(text.out.split())
    assert '[8/8] strength 1: score' in text.err


def test_a_base_that_moved_is_said_and_the_plain_model_evaluated(files, capsys):
    trained = torch.load(files / 'trained.pth')
    trained['state_dict']['bbox_head.retina_cls.bias'] += 1
    torch.save(trained, files / 'trained.pth')
    content = run(files, '--plain', files / 'plain.pth', '--points', 'fpn1')
    scores = {row['setting']: row['metrics']['score'] for row in content['results']}
    assert list(scores) == ['all on', 'all off', 'neck.fpn1 off', 'plain checkpoint']
    assert scores['plain checkpoint'] < scores['all off'], 'a lower bias, lower scores'
    assert (
        'is not the plain model: training changed the rest too (1 weights, 0 stat'
        in content['note']
    )
    content = run(files, '--points', 'fpn1', '--metric', 'pictures')
    assert 'is not known' in content['note']


def test_mistakes(files, capsys):
    for arguments, message in (
        ([files / 'config.py', files / 'none.pth'], 'there is no checkpoint'),
        ([files / 'config.py', files / 'plain.pth'], 'keys missing'),
        ([files / 'config.py', files / 'trained.pth', '--points', 'fpn2'], "did you mean 'fpn1'"),
        (
            [files / 'config.py', files / 'trained.pth', '--metric', 'mAP'],
            "no metric 'mAP'; there are score, pictures",
        ),
        (
            [files / 'config.py', files / 'trained.pth', '--cfg-options', 'test_evaluator=None'],
            'has no test_evaluator',
        ),
        (
            [
                files / 'config.py',
                files / 'trained.pth',
                '--cfg-options',
                'test_dataloader.dataset.ann_file=none.json',
            ],
            'cannot be set up',
        ),
    ):
        assert (
            ablate.main(
                [str(argument) for argument in arguments] + ['--out-dir', str(files / 'out')]
            )
            == 2
        )
        assert message in capsys.readouterr().err.strip().splitlines()[-1]
