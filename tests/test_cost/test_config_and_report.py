"""Models built from configs, the image size that is assumed, and the report on a model."""

import json

import pytest
from mmengine.config import Config
from mmengine.registry import DefaultScope

from kronattn_mm import insertion_shapes
from kronattn_mm.cost.config import (
    ConfigError,
    default_image_shape,
    load_config,
    load_model,
    without_weights,
)
from kronattn_mm.cost.report import cost_report

pytest.importorskip('mmpretrain')

CLASSIFIER = """
default_scope = 'mmpretrain'
attention = dict(type='kronattn_mm.EfficientAttention2d', key_channels=16, value_channels=16)
model = dict(
    type='ImageClassifier',
    backbone=dict(type='kronattn_mm.Plugged', base='mmpretrain.ResNet', depth=18,
                  init_cfg=dict(type='Pretrained', checkpoint='https://nowhere.invalid/r18.pth'),
                  convs=[dict(at='layer1.0.conv1', layer=dict(type='ConvAWS'))],
                  insert=[dict(at='res3', layer=attention, with_cp=True),
                          dict(at='res4', layer=dict(type='ContextBlock', ratio=0.25),
                               norm_eval=True)]),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(type='LinearClsHead', num_classes=10, in_channels=512))
"""


@pytest.fixture(scope='module')
def classifier(tmp_path_factory):
    path = tmp_path_factory.mktemp('configs') / 'classifier.py'
    path.write_text(CLASSIFIER, encoding='utf-8')
    return load_model(path)[0]


def test_model_is_built_without_weights_or_traces(tmp_path, capfd):
    path = tmp_path / 'classifier.py'
    path.write_text(CLASSIFIER, encoding='utf-8')
    model, config = load_model(path, {'model.head.num_classes': 7})
    assert model.head.fc.out_features == 7
    assert config.model.backbone.init_cfg is None
    assert capfd.readouterr().out == ''
    assert DefaultScope.get_current_instance() is None


def test_what_would_load_weights_is_cleared():
    config = dict(
        pretrained='open-mmlab://resnet50',
        teacher_ckpt='https://nowhere.invalid/t.pth',
        backbone=dict(
            type='TIMMBackbone', pretrained=True, init_cfg=dict(type='Pretrained', checkpoint='x')
        ),
        neck=[dict(init_cfg=dict(type='Xavier')), dict(pretrained=None)],
    )
    without_weights(config)
    assert config == dict(
        pretrained=None,
        teacher_ckpt=None,
        backbone=dict(type='TIMMBackbone', pretrained=False, init_cfg=None),
        neck=[dict(init_cfg=dict(type='Xavier')), dict(pretrained=None)],
    )


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('model = dict(', 'cannot be read as a config'),
        ('raise RuntimeError("no data today")', 'cannot be read as a config: no data today'),
        ('data = 1', r'has no model \(a dict `model` with a `type`\)'),
        ('model = dict(depth=18)', r'has no model'),
        (
            "default_scope = 'mmpretrain'\nmodel = dict(type='NoSuchModel')",
            r'cannot be built: .*NoSuchModel',
        ),
    ],
)
def test_what_no_model_can_be_made_of(tmp_path, text, message):
    path = tmp_path / 'config.py'
    path.write_text(text, encoding='utf-8')
    with pytest.raises(ConfigError, match=message) as caught:
        load_model(path)
    assert '\n' not in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_file_and_missing_library(tmp_path):
    with pytest.raises(ConfigError, match='there is no config file .*absent.py'):
        load_config(tmp_path / 'absent.py')
    path = tmp_path / 'config.py'
    path.write_text("default_scope = 'mmnowhere'\nmodel = dict(type='Model')", encoding='utf-8')
    with pytest.raises(ImportError, match='one of mmnowhere, which cannot be imported'):
        load_model(path)


@pytest.mark.parametrize(
    ('entries', 'shape', 'source'),
    [
        (dict(default_scope='mmdet'), (896, 1280), 'default for mmdet'),
        (dict(default_scope='mmseg'), (512, 512), 'default for mmseg'),
        (dict(default_scope='mmpretrain'), (224, 224), 'default for mmpretrain'),
        (dict(), (896, 1280), 'default for detectors'),
        (
            dict(
                test_pipeline=[dict(type='mmdet.Resize', scale=(1333, 800), keep_ratio=True)],
                model=dict(data_preprocessor=dict(pad_size_divisor=32)),
            ),
            (800, 1344),
            'test pipeline: Resize to width 1333, height 800, the largest it makes, padded to '
            'multiples of 32',
        ),
        (
            dict(
                test_pipeline=[
                    dict(type='ResizeEdge', scale=256),
                    dict(type='CenterCrop', crop_size=224),
                ]
            ),
            (224, 224),
            'CenterCrop',
        ),
        (
            dict(test_pipeline=[dict(type='Resize', scale_factor=2.0)], default_scope='mmseg'),
            (512, 512),
            'default for mmseg',
        ),
        (
            dict(
                test_dataloader=dict(
                    dataset=dict(
                        type='ConcatDataset',
                        datasets=[
                            dict(
                                pipeline=[
                                    dict(type='LoadImageFromFile'),
                                    dict(type='Resize', scale=300),
                                ]
                            )
                        ],
                    )
                )
            ),
            (300, 300),
            'Resize to width 300, height 300',
        ),
    ],
)
def test_image_size_of_a_config(entries, shape, source):
    found, said = default_image_shape(Config(entries))
    assert found == shape
    assert source in said


def test_report_on_a_model(classifier):
    report = cost_report(classifier, (64, 96))
    first, second = report.layers
    shapes = insertion_shapes(classifier, (64, 96))
    assert {layer.name: layer.shape for layer in report.layers} == shapes
    assert first.shape == (1, 256, 4, 6)
    assert (first.name, first.point, first.layer) == (
        'backbone.res3',
        'res3',
        'EfficientAttention2d',
    )
    assert first.with_cp and first.executed.kept == 0 and not first.norm_eval
    assert second.norm_eval and not second.with_cp
    # No formula for ContextBlock: not in the paper's total, but in what is executed.
    assert second.paper is None
    assert report.paper_total == first.paper
    assert report.executed_total.params == first.executed.params + second.executed.params
    assert report.parts == ('backbone', 'neck')
    assert report.model_params == sum(p.numel() for p in classifier.parameters())
    assert report.params_share == report.executed_total.params / report.model_params
    assert 0 < report.macc_share < 0.1
    (conv,) = report.convs
    assert (conv.name, conv.layer, conv.shape) == (
        'backbone.layer1.0.conv1',
        'ConvAWS2d',
        (1, 64, 16, 24),
    )
    assert conv.executed.macc == 16 * 24 * 64 * 64 * 9


def test_whole_count_is_the_plain_model_and_what_is_inserted(classifier):
    report = cost_report(classifier, (64, 64))
    # ResNet-18 at 64 x 64: the stem, 16 convolutions of the blocks, 3 of the shortcuts.
    stem = 32 * 32 * 3 * 64 * 49
    blocks = 4 * 16 * 16 * 64 * 64 * 9
    for side, width in ((8, 128), (4, 256), (2, 512)):
        blocks += (
            side * side * (width // 2 * width * 9 + 3 * width * width * 9 + width // 2 * width)
        )
    assert report.model_macc == stem + blocks + report.executed_total.macc


def test_report_is_json_and_says_where_there_is_no_formula(classifier):
    content = json.loads(json.dumps(cost_report(classifier, (64, 64)).as_dict()))
    first, second = content['layers']
    assert first['paper']['macc'] == first['executed']['macc']
    assert second['paper'] is None and second['paper_note'] == 'no formula in a paper'
    assert content['total']['without_formula'] == ['backbone.res4']


def test_model_is_left_as_it_was(classifier):
    classifier.train()
    modes = {name: module.training for name, module in classifier.named_modules()}
    hooks = {name: len(module._forward_pre_hooks) for name, module in classifier.named_modules()}
    cost_report(classifier, (64, 64))
    for name, module in classifier.named_modules():
        assert module.training == modes[name], name
        assert len(module._forward_pre_hooks) == hooks[name], name


def test_not_a_whole_model(classifier):
    with pytest.raises(TypeError, match='ResNet has no extract_feat; give a whole detector'):
        cost_report(classifier.backbone, (64, 64))
