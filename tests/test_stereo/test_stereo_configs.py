"""Every stereo config builds, says the paper's schedule and is in the README."""

from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from kronattn_mm import inserted_layers

FOLDER = Path(__file__).resolve().parents[2] / 'configs' / 'efficient_attention' / 'stereo'
PAPER = sorted(FOLDER.glob('*.py'))
ALL = PAPER + sorted((FOLDER / 'small').glob('*.py'))


def load(path: Path) -> Config:
    return Config.fromfile(path)


@pytest.mark.parametrize('path', ALL, ids=lambda path: path.stem)
def test_it_builds_with_attention_where_its_name_says(path):
    config = load(path)
    with DefaultScope.overwrite_default_scope(config.default_scope):
        model = MODELS.build(config.model)
    names = list(inserted_layers(model))
    assert names == (['neck.out2'] if '-out2' in path.stem else [])
    if names:
        layer = model.neck.attention.out2
        assert type(layer).__name__ == (
            'NonLocal3d' if '_nl-' in path.stem else 'EfficientAttention3d'
        )


def test_the_paper_s_schedule():
    config = load(FOLDER / 'psmnet_ea-out2_8xb3-100e_sceneflow.py')
    assert 8 * config.train_dataloader.batch_size == 24 == config.auto_scale_lr.base_batch_size
    assert config.optim_wrapper.optimizer == dict(type='Adam', lr=2e-3, betas=(0.9, 0.999))
    assert config.train_cfg.max_epochs == 100 and config.param_scheduler == []
    original = load(FOLDER / 'psmnet_4xb3-10e_sceneflow.py')
    assert 4 * original.train_dataloader.batch_size == 12
    assert original.optim_wrapper.optimizer.lr == 1e-3 and original.train_cfg.max_epochs == 10


def test_configs_of_a_pair_differ_in_the_attention_alone():
    for folder, with_attention in (
        ('.', 'psmnet_ea-out2_8xb3-100e_sceneflow.py'),
        ('small', 'psmnet_ea-out2_composed-pairs.py'),
    ):
        plugged = load(FOLDER / folder / with_attention).to_dict()
        plain = load(FOLDER / folder / with_attention.replace('_ea-out2', '')).to_dict()
        neck = plugged['model']['neck']
        assert neck.pop('type') == 'kronattn_mm.Plugged' and len(neck.pop('insert')) == 1
        neck['type'] = neck.pop('base')
        del plugged['attention']
        assert plugged == plain


def test_the_readme_lists_every_config():
    text = (FOLDER / 'README.md').read_text(encoding='utf-8')
    for path in ALL:
        assert f'({path.relative_to(FOLDER).as_posix()})' in text, path.name
