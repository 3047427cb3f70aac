"""The classifiers of the Shift-and-Balance paper: which convolutions are attended, and how."""

import re
from pathlib import Path

import pytest

pytest.importorskip('mmpretrain')

from mmengine.config import Config

from kronattn_mm.cost.config import load_model
from kronattn_mm.layers import (
    DynamicConv2d,
    ShiftBalanceConv2d,
    SqueezeExcite2d,
    SqueezeExciteConv2d,
)
from kronattn_mm.plugging import inserted_layers, replaced_convs

ROOT = Path(__file__).resolve().parents[2] / 'configs' / 'shift_and_balance' / 'classification'
FILES = sorted(path for folder in ('imagenet', 'cifar10') for path in (ROOT / folder).glob('*.py'))
CLASSES = dict(sb=ShiftBalanceConv2d, se=SqueezeExciteConv2d, dyconv=DynamicConv2d)
# Blocks, and convolutions in the first pointwise place, in both, and in all.
COUNTS = dict(mobilenetv2=(17, 16, 33, 50), mnasnet=(17, 16, 33, 50), shufflenetv2=(16, 16, 32, 48))


def parts(path: Path) -> tuple[str, str, str]:
    network, variant = path.stem.split('_')[:2]
    network, _, width = network.partition('-x')
    return network, width or '1.0', variant


def test_rows_of_the_tables():
    names = {path.name.partition('_4xb64')[0] for path in FILES if 'in1k' in path.name}
    networks = [
        *(f'mobilenetv2-x{width}' for width in ('0.35', '0.5', '0.75', '1.0')),
        'shufflenetv2-x0.5',
        'mnasnet-x0.5',
    ]
    variants = [
        'static',
        'se-block',
        'dyconv',
        *(f'{kind}-{number}' for kind in ('se', 'sb') for number in (1, 2, 3)),
    ]
    assert names == {f'{network}_{variant}' for network in networks for variant in variants}


def test_widths_and_data_change_nothing_else():
    backbones = {}
    for path in FILES:
        network, width, variant = parts(path)
        backbone = dict(Config.fromfile(path).model.backbone)
        assert backbone.pop('widen_factor') == float(width)
        base = backbone.pop('base')
        if network == 'mobilenetv2':
            assert base == (
                'kronattn_mm.CIFARMobileNetV2'
                if 'cifar10' in path.name
                else 'mmpretrain.MobileNetV2'
            )
        assert backbone == backbones.setdefault((network, variant), backbone)


@pytest.mark.parametrize(
    'path', {parts(path)[::2]: path for path in FILES}.values(), ids=lambda path: path.stem
)
def test_attended_convolutions(path: Path):
    network, _, variant = parts(path)
    # Narrow, for speed: which convolutions are replaced does not depend on the width.
    narrow = {} if network == 'shufflenetv2' else {'model.backbone.widen_factor': 0.1}
    model, _ = load_model(path, narrow)
    replaced = replaced_convs(model)
    inserted = inserted_layers(model)
    kind, _, number = variant.partition('-')
    blocks, *counts = COUNTS[network]
    if variant == 'se-block':
        assert not replaced
        assert len(inserted) == blocks
        assert {type(item.layer) for item in inserted.values()} == {SqueezeExcite2d}
        return
    assert not inserted
    expected = 0 if variant == 'static' else counts[int(number or 3) - 1]
    assert len(replaced) == expected
    modules = dict(model.named_modules())
    for name in replaced:
        conv = modules[name]
        assert type(conv) is CLASSES[kind]
        # Nothing outside the blocks, and of ShuffleNetV2's units only the branch with three.
        assert re.search(r'\.layers?\.?[0-7]\.\d+\.(conv|branch2)\.', name), name
        if number in ('1', '2'):
            assert conv.kernel_size == (1, 1)
        if number == '1':
            assert re.search(r'\.(conv|branch2)\.0\.', name), name
        if kind in ('sb', 'se') and conv.depthwise:
            rule = conv.out_channels // (1 if network == 'shufflenetv2' else 6)
            assert conv.attention.hidden_channels == max(1, rule)
        elif kind in ('sb', 'se'):
            assert conv.attention.hidden_channels == conv.out_channels
        if kind == 'sb':
            assert conv.attention.gate == 'tanh'
            assert conv.attention.lambda_init == 0.1


def test_imagenet_recipe():
    """Section 5.1."""
    config = Config.fromfile(ROOT / 'imagenet' / 'mobilenetv2-x0.5_sb-3_4xb64-300e_in1k.py')
    assert config.train_cfg.max_epochs == config.param_scheduler[0].end == 300
    assert config.train_dataloader.batch_size * 4 == 256
    optimizer = config.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.momentum, optimizer.weight_decay) == (
        'SGD',
        0.1,
        0.9,
        4e-5,
    )
    scheduler = config.param_scheduler[0]
    assert (scheduler.type, scheduler.power, scheduler.eta_min) == ('PolyLR', 1, 0)
    assert config.model.head.type == 'kronattn_mm.DropoutLinearClsHead'
    assert config.model.head.dropout == 0.2
    crop = config.train_pipeline[1]
    assert (crop.type, crop.scale, crop.crop_ratio_range) == ('RandomResizedCrop', 224, (0.08, 1))


def test_cifar_recipe():
    """Section 5.3."""
    config = Config.fromfile(ROOT / 'cifar10' / 'mobilenetv2_sb-3_b128-200e_cifar10.py')
    assert config.train_cfg.max_epochs == config.param_scheduler[0].T_max == 200
    assert config.param_scheduler[0].type == 'CosineAnnealingLR'
    assert config.train_dataloader.batch_size == 128
    assert config.optim_wrapper.optimizer.weight_decay == 5e-4
    # 36 x 36 before the crop.
    crop = config.train_pipeline[0]
    assert (crop.type, crop.crop_size, crop.padding) == ('RandomCrop', 32, 2)


def test_metafile_and_readme_list_the_configs_there_are():
    yaml = pytest.importorskip('yaml')
    root = ROOT.parents[2]
    content = yaml.safe_load((ROOT.parent / 'metafile.yml').read_text(encoding='utf-8'))
    collections = ('Shift-and-Balance, ImageNet', 'Shift-and-Balance, CIFAR-10')
    models = [model for model in content['Models'] if model['In Collection'] in collections]
    assert sorted(model['Config'] for model in models) == sorted(
        path.relative_to(root).as_posix() for path in FILES
    )
    for model in models:
        assert model['Name'] == Path(model['Config']).stem
        assert not {'Results', 'Weights'} & model.keys()  # nothing has been trained
        config = Config.fromfile(root / model['Config'])
        assert model['Metadata']['Epochs'] == config.train_cfg.max_epochs
        assert model['Metadata']['Batch Size'] == config.auto_scale_lr.base_batch_size
    readme = (ROOT / 'README.md').read_text(encoding='utf-8')
    assert sorted(re.findall(r'\((\S+\.py)\)', readme)) == sorted(
        path.relative_to(ROOT).as_posix() for path in FILES
    )
    index = yaml.safe_load((root / 'model-index.yml').read_text(encoding='utf-8'))
    assert 'configs/shift_and_balance/metafile.yml' in index['Import']
