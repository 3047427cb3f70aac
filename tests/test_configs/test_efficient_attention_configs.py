"""Every config of configs/efficient_attention: it is the row it is named after, and it trains."""

import copy
import functools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip('mmdet')

from mmengine.config import Config
from mmengine.optim import LinearLR, MultiStepLR, build_optim_wrapper
from mmengine.registry import init_default_scope

from kronattn_mm import inserted_layers, insertion_shapes

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / 'configs' / 'efficient_attention'
PAPER = '32xb2-24e'
LAYERS = {
    'ea': 'EfficientAttention2d',
    'nl': 'RegularAttention2d',
    'nonlocal2d': 'NonLocal2d',
    'context-block': 'ContextBlock',
    'latent-gnn': 'LatentGNN2d',
    'cgnl': 'CGNL2d',
    'cgnlx': 'CGNL2d',
}
NAME = re.compile(
    r'_(?P<layer>ea|nl|nonlocal2d|context-block|latent-gnn|cgnlx?)-(?P<normalization>scaling-)?'
    r'(?:dk(?P<key_channels>\d+)-)?(?P<points>(?:-?(?:res|fpn|out)\d(?:-\d)?)+)_'
)
TABLE_2_ROWS = (
    'res3',
    'res4',
    'fpn1',
    'fpn2',
    'fpn3',
    'fpn4',
    'fpn5',
    'res3-4-fpn3-5',
    'res3-4-fpn1-5',
)


def config_files() -> list[Path]:
    """All configs, those with the same base model together, so that it is built once."""
    return sorted(FOLDER.glob('*.py'), key=lambda path: (NAME.sub('_', path.name), path.name))


def points_in(name: str) -> list[str]:
    """``'res3-4-fpn1'`` -> ``['res3', 'res4', 'fpn1']``."""
    match = NAME.search(name)
    if match is None:
        return []
    if match['layer'].startswith('cgnl'):
        return ['layer3.4']  # in the stage, before its last block
    words = re.findall(r'(res|fpn|out)(\d)(?:-(\d))?', match['points'])
    return [
        f'{kind}{number}'
        for kind, first, last in words
        for number in range(int(first), int(last or first) + 1)
    ]


def dicts(node: Any) -> Iterator[dict]:
    """All dicts in a config, the node itself first."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for child in node:
            yield from dicts(child)


def small(model: dict) -> dict:
    """Make a step cheap and offline: few proposals, narrow box heads, no pretrained weights.

    Backbone and neck, which the layers sit in, stay what the config says. The RPN's loss takes
    all anchors, those that reach out of the small picture too, so that every level has a part in
    it.
    """
    for node in dicts(model):
        if (node.get('init_cfg') or {}).get('type') == 'Pretrained':
            node['init_cfg'] = None
        if 'num' in (node.get('sampler') or {}):
            second_stage = node['sampler']['add_gt_as_proposals']
            node['sampler']['num'] = 16 if second_stage else 100_000
        if 'allowed_border' in node:
            node['allowed_border'] = -1
        if 'rpn_proposal' in node:
            node['rpn_proposal'].update(nms_pre=50, max_per_img=20)
        if 'fc_out_channels' in node:
            node['fc_out_channels'] = 32
    return model


def without_insertions(model: dict) -> dict:
    """The same model as the upstream library alone would build it."""
    for part in ('backbone', 'neck'):
        if model[part].get('base') is not None:
            model[part]['type'] = model[part].pop('base')
            model[part].pop('insert')
    return model


def build(model: dict) -> torch.nn.Module:
    from mmdet.registry import MODELS

    init_default_scope('mmdet')
    return MODELS.build(model)


@functools.lru_cache(maxsize=1)
def upstream_state(model: str) -> dict[str, torch.Tensor]:
    return build(Config(json.loads(model))).state_dict()


@functools.cache
def parsed(path: Path) -> Config:
    return Config.fromfile(path)


def load(path: Path | str) -> Config:
    """Return a config, by path or by name, that a test may change."""
    return copy.deepcopy(parsed(FOLDER / f'{path}.py' if isinstance(path, str) else path))


@pytest.mark.parametrize('path', config_files(), ids=lambda path: path.stem)
def test_config_is_its_row_and_trains_one_step(path: Path) -> None:
    config = load(path)
    model = build(small(config.model))

    layers = inserted_layers(model)
    assert [insertion.point for insertion in layers.values()] == points_in(path.name)
    match = NAME.search(path.name)
    for insertion in layers.values():
        assert type(insertion.layer).__name__ == LAYERS[match['layer']]
        if match['layer'] in ('ea', 'nl'):
            assert insertion.layer.key_channels == int(match['key_channels'] or 64)
            assert insertion.layer.value_channels == 64
            assert insertion.layer.normalization == (
                'scaling' if match['normalization'] else 'softmax'
            )

    plain = without_insertions(small(load(path).model))
    missing, unexpected = model.load_state_dict(upstream_state(json.dumps(plain)), strict=False)
    assert not unexpected
    assert all('.attention.' in key for key in missing)
    assert bool(missing) == bool(layers)

    take_one_step(model, config)


def take_one_step(model: torch.nn.Module, config: Config) -> None:
    from mmdet.testing import demo_mm_inputs

    # mmengine's wrapper for mixed precision refuses to be built without a GPU.
    if config.optim_wrapper.type == 'AmpOptimWrapper':
        config.optim_wrapper.type = 'OptimWrapper'
        config.optim_wrapper.pop('dtype', None)
    optim_wrapper = build_optim_wrapper(model, config.optim_wrapper)
    data = demo_mm_inputs(
        1,
        [(3, 96, 128)],
        num_items=[3],
        num_classes=80,
        with_mask=hasattr(getattr(model, 'roi_head', None), 'mask_head'),
    )
    model.train()
    loss, logged = model.parse_losses(model(**model.data_preprocessor(data, True), mode='loss'))
    assert all(torch.isfinite(value).all() for value in logged.values()), logged
    optim_wrapper.backward(loss)
    inserted = {
        name: parameter for name, parameter in model.named_parameters() if '.attention.' in name
    }
    without = [
        name
        for name, parameter in inserted.items()
        if parameter.requires_grad and parameter.grad is None
    ]
    assert not without
    assert all(parameter.requires_grad for parameter in inserted.values())
    # Zero-initialised layers learn through their last convolution first.
    before = {
        name: parameter.detach().clone()
        for name, parameter in inserted.items()
        if parameter.grad.abs().sum() > 0
    }
    for insertion in inserted_layers(model).values():
        own = {id(parameter) for parameter in insertion.layer.parameters()}
        assert any(id(inserted[name]) in own for name in before), insertion
    optim_wrapper.step()
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    if config.param_scheduler[0].type == 'LinearLR':  # the schedulers are not at work here
        for name, value in before.items():
            assert not torch.equal(inserted[name], value), name


def test_every_row_of_tables_2_to_5_is_there() -> None:
    expected = {f'mask-rcnn_{backbone}_fpn' for backbone in ('r50', 'r101', 'x101-32x4d')}
    expected |= {f'{backbone}_ea-res3-4-fpn1-5' for backbone in expected}  # table 3
    expected |= {
        f'mask-rcnn_r50_fpn_{layer}-{row}' for layer in ('ea', 'nl') for row in TABLE_2_ROWS
    }
    expected |= {f'mask-rcnn_r50_fpn_ea-{word}fpn1-5' for word in ('', 'scaling-')}  # table 4
    expected |= {f'mask-rcnn_r50_fpn_ea-dk{d_k}-res3-4-fpn3-5' for d_k in (32, 128)}  # table 5
    assert {
        path.stem.split(f'_{PAPER}')[0] for path in FOLDER.glob(f'*_{PAPER}_coco.py')
    } == expected


@pytest.mark.parametrize('path', sorted(FOLDER.glob(f'*_{PAPER}_*.py')), ids=lambda path: path.stem)
def test_rows_of_the_paper_share_its_set_up(path: Path) -> None:
    config = load(path)
    baseline = load(f'mask-rcnn_r50_fpn_{PAPER}_coco')
    for key in (
        'train_cfg',
        'optim_wrapper',
        'param_scheduler',
        'auto_scale_lr',
        'custom_hooks',
        'train_dataloader',
        'val_dataloader',
        'test_dataloader',
        'val_evaluator',
    ):
        assert config[key] == baseline[key], key
    for key in ('rpn_head', 'roi_head', 'train_cfg', 'test_cfg', 'data_preprocessor'):
        assert config.model[key] == baseline.model[key], key


def test_learning_rate_over_the_epochs() -> None:
    config = load(f'mask-rcnn_r50_fpn_{PAPER}_coco')
    assert config.train_cfg.max_epochs == 24
    assert config.train_dataloader.batch_size * 32 == config.auto_scale_lr.base_batch_size == 64
    optimizer = torch.optim.AdamW(
        [torch.nn.Parameter(torch.zeros(1))], lr=config.optim_wrapper.optimizer.lr
    )
    warm_up, steps = config.param_scheduler
    assert warm_up.pop('type') == 'LinearLR' and steps.pop('type') == 'MultiStepLR'
    LinearLR(optimizer, **warm_up)
    for _ in range(warm_up.end + 1):
        assert optimizer.param_groups[0]['lr'] <= 1.25e-4
    optimizer.param_groups[0]['lr'] = 1.25e-4
    scheduler = MultiStepLR(optimizer, **steps)
    rates = []
    for _ in range(config.train_cfg.max_epochs):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([1.25e-4] * 18 + [1.25e-5] * 3 + [1.25e-6] * 3)


def test_norms_and_biases_do_not_decay() -> None:
    config = load(f'mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_{PAPER}_coco')
    model = build(small(config.model))
    wrapper = build_optim_wrapper(model, config.optim_wrapper)
    decay = {
        id(parameter): group['weight_decay']
        for group in wrapper.optimizer.param_groups
        for parameter in group['params']
    }
    decays = {
        name: decay[id(parameter)]
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    assert decays['backbone.attention.res3.keys.weight'] == 0.05
    assert decays['backbone.attention.res3.keys.bias'] == 0
    assert decays['backbone.layer3.0.bn1.weight'] == 0
    assert all(value == 0 for name, value in decays.items() if name.endswith('.bias'))


def test_one_key_reaches_the_inserted_layers_and_nothing_else() -> None:
    config = load(f'mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_{PAPER}_coco')
    config.optim_wrapper.paramwise_cfg.custom_keys = {'.attention.': dict(lr_mult=10.0)}
    model = build(small(config.model))
    wrapper = build_optim_wrapper(model, config.optim_wrapper)
    rates = {
        id(parameter): group['lr']
        for group in wrapper.optimizer.param_groups
        for parameter in group['params']
    }
    inserted = {
        id(parameter)
        for insertion in inserted_layers(model).values()
        for parameter in insertion.layer.parameters()
    }
    assert {key for key, rate in rates.items() if rate == pytest.approx(1.25e-3)} == inserted
    assert all(rate == pytest.approx(1.25e-4) for key, rate in rates.items() if key not in inserted)


def test_feature_maps_have_the_sizes_of_table_2() -> None:
    model = build(small(load(f'mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_{PAPER}_coco').model))
    assert insertion_shapes(model, (896, 1280)) == {
        'backbone.res3': (1, 1024, 56, 80),
        'backbone.res4': (1, 2048, 28, 40),
        'neck.fpn1': (1, 256, 224, 320),
        'neck.fpn2': (1, 256, 112, 160),
        'neck.fpn3': (1, 256, 56, 80),
        'neck.fpn4': (1, 256, 28, 40),
        'neck.fpn5': (1, 256, 14, 20),
    }


def test_fifth_level_is_a_strided_convolution_on_res4() -> None:
    model = build(small(load(f'mask-rcnn_r50_fpn_{PAPER}_coco').model))
    last = model.neck.fpn_convs[4].conv
    assert (last.in_channels, last.kernel_size, last.stride) == (2048, (3, 3), (2, 2))


def test_configs_parse_where_a_wheel_puts_them(tmp_path: Path) -> None:
    shipped = tmp_path / 'kronattn_mm' / '.mim' / 'configs'
    shutil.copytree(ROOT / 'configs', shipped)
    for path in config_files()[::6]:
        there = Config.fromfile(shipped / 'efficient_attention' / path.name)
        assert there.model == load(path).model


def test_pictures_fit_into_the_input_size() -> None:
    from mmdet.registry import TRANSFORMS

    init_default_scope('mmdet')
    config = load(f'mask-rcnn_r50_fpn_{PAPER}_coco')
    for loader in (config.train_dataloader, config.val_dataloader):
        resize = TRANSFORMS.build(
            next(step for step in loader.dataset.pipeline if step.type == 'Resize')
        )
        for height, width in ((480, 640), (640, 480), (427, 640), (300, 640)):
            image = torch.zeros(height, width, 3, dtype=torch.uint8).numpy()
            result = resize(dict(img=image))['img']
            short, long = sorted(result.shape[:2])
            assert short <= 896 and long <= 1280
            assert short == 896 or long == 1280
            assert long / short == pytest.approx(max(height, width) / min(height, width), rel=1e-2)


def test_metafile_and_readme_list_the_configs_there_are() -> None:
    yaml = pytest.importorskip('yaml')
    metafile = yaml.safe_load((FOLDER / 'metafile.yml').read_text(encoding='utf-8'))
    models = [
        model
        for model in metafile['Models']
        if model['In Collection'] == 'Efficient Attention, instance segmentation'
    ]
    assert sorted(model['Config'] for model in models) == sorted(
        path.relative_to(ROOT).as_posix() for path in FOLDER.glob('*.py')
    )
    collections = {collection['Name'] for collection in metafile['Collections']}
    for model in models:
        assert model['Name'] == Path(model['Config']).stem
        assert model['In Collection'] in collections
        assert not {'Results', 'Weights'} & model.keys()  # nothing has been trained
        config = load(ROOT / model['Config'])
        assert model['Metadata']['Epochs'] == config.train_cfg.max_epochs
        assert model['Metadata']['Batch Size'] == config.auto_scale_lr.base_batch_size
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text(encoding='utf-8'))
    assert 'configs/efficient_attention/metafile.yml' in index['Import']
    readme = (FOLDER / 'README.md').read_text(encoding='utf-8')
    assert sorted(re.findall(r'\((\S+)\.py\)', readme)) == sorted(
        path.stem for path in FOLDER.glob('*.py')
    )
