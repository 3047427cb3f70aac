"""Small models of each kind as files, for the tests of what is deployed."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

CLASSIFIER = """
default_scope = 'mmpretrain'
custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375],
                           to_rgb=True),
    backbone=dict(
        type='kronattn_mm.KANet',
        arch=[(1, 8, 2, ('base',)), (2, 16, 1, ('attn',))],
            attention=dict(type='kronattn_mm.KroneckerAttention2d', mode='qkv')),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(type='LinearClsHead', num_classes=3, in_channels=1280))
test_dataloader = dict(dataset=dict(
    type='CustomDataset', data_root='nowhere', metainfo=dict(classes=['ant', 'bee', 'cat'])))
"""


@pytest.fixture
def classifier_text() -> str:
    """The config of a small classifier, whose test set is not there."""
    return CLASSIFIER


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[[Path], tuple[Path, Path]]:
    """Write a checkpoint for a config, with weights that do something; both are returned."""
    from converted import trained

    from kronattn_mm.cost.config import load_model

    def write(config: Path) -> tuple[Path, Path]:
        torch.manual_seed(0)
        model, _ = load_model(config)
        checkpoint = tmp_path / 'weights.pth'
        torch.save(dict(state_dict=trained(model).state_dict(), meta={}), checkpoint)
        return config, checkpoint

    return write


@pytest.fixture
def classifier(
    tmp_path: Path, write_model: Callable[[Path], tuple[Path, Path]]
) -> tuple[Path, Path]:
    """Config and checkpoint of a small classifier."""
    config = tmp_path / 'model.py'
    config.write_text(CLASSIFIER)
    return write_model(config)
