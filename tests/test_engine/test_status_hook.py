"""The table at the start of a run."""

from pathlib import Path

import pytest
import torch

pytest.importorskip('mmdet')

from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner

from kronattn_mm.engine.status_hook import AttentionStatusHook
from kronattn_mm.listing.status import status_text
from kronattn_mm.plugging import inserted_layers

CONFIG = dict(
    type='SingleStageDetector',
    backbone=dict(
        type='kronattn_mm.Plugged',
        base='mmdet.ResNet',
        depth=18,
        convs=[dict(at='layer4.1.conv2', layer=dict(type='kronattn_mm.ShiftBalanceConv2d'))],
        insert=[
            dict(at='res3', layer=dict(type='kronattn_mm.EfficientAttention2d')),
            dict(at='res4', layer=dict(type='NonLocal2d', norm_cfg=dict(type='BN'))),
        ],
    ),
    bbox_head=dict(type='RetinaHead', num_classes=2, in_channels=512),
)


def build() -> torch.nn.Module:
    init_default_scope('mmdet')
    return MODELS.build(CONFIG)


def rows_of(text: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}


def test_what_the_table_says() -> None:
    model = build()
    rows = rows_of(status_text(model, (128, 160)))
    assert rows['backbone.res3'][1:3] == ['EfficientAttention2d', '256x8x10']
    assert rows['backbone.res3'][-3:] == ['on', 'all', '-']
    assert rows['backbone.res4'][-3:] == ['on', 'all', 'train']
    assert rows['backbone.layer4.1.conv2'][1] == 'ShiftBalanceConv2d'
    layer = inserted_layers(model)['backbone.res3']
    layer.enabled = False
    layer.layer.requires_grad_(False)
    inserted_layers(model)['backbone.res4'].scale = 0.5
    text = status_text(model)
    rows = rows_of(text)
    assert rows['backbone.res3'][-3:] == ['off', 'none', '-']
    assert ' x 0.5 ' in text
    total = sum(parameter.numel() for parameter in model.parameters())
    frozen = sum(parameter.numel() for parameter in layer.layer.parameters())
    assert f'of {total:,} parameters' in text and f'{total - frozen:,} are trained' in text
    assert 'nothing is inserted' in status_text(model.bbox_head)


def test_the_hook_logs_it_and_changes_nothing(tmp_path: Path) -> None:
    model = build()
    random, flags = torch.get_rng_state(), [module.training for module in model.modules()]
    runner = Runner(
        model,
        str(tmp_path),
        custom_hooks=[AttentionStatusHook((128, 160))],
        cfg=Config(dict(model=dict())),
        experiment_name='status',
    )
    torch.set_rng_state(random)
    runner.call_hook('before_run')
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model.modules()] == flags
    (log,) = tmp_path.glob('*/*.log')
    text = log.read_text(encoding='utf-8')
    assert 'inserted layers (one image of 128 x 160; image_shape):' in text
    assert rows_of(text)['backbone.res3'][2] == '256x8x10'


def test_bad_shapes() -> None:
    with pytest.raises(TypeError, match='height and width'):
        AttentionStatusHook(224)
