"""Classification and detection in configs/kronecker_attention: what the configs say, and a step."""

import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
import torch
import yaml

pytest.importorskip('mmcv')

from mmengine.config import Config
from mmengine.optim import MultiStepLR, build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, TRANSFORMS, init_default_scope
from mmengine.runner import Runner

from kronattn_mm import inserted_layers
from kronattn_mm.models.backbones.kanet import KANet

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / 'configs' / 'kronecker_attention'
IMAGENET = sorted((FOLDER / 'imagenet').glob('*.py'))
DETECTION = sorted((FOLDER / 'detection').glob('*.py'))
SMALL = sorted((FOLDER / 'small').glob('*.py'))
ATTENTION = {
    'kanet-kv': ('KroneckerAttention2d', dict(mode='kv')),
    'kanet-qkv': ('KroneckerAttention2d', dict(mode='qkv')),
    'kao-kv': ('KroneckerAttention2d', dict(mode='kv')),
    'kao-qkv': ('KroneckerAttention2d', dict(mode='qkv')),
    'attnnet': ('UnfoldedAttention2d', dict(pooling=False)),
    'attnnet-pool': ('UnfoldedAttention2d', dict(pooling=True)),
    'mobilenetv2-kao': ('KroneckerAttention2d', dict(mode='kv')),
}


def without_downloads(node: Any) -> Any:
    """Drop `init_cfg` that would load a checkpoint, anywhere in a config."""
    if isinstance(node, dict):
        init_cfg = node.get('init_cfg')
        if isinstance(init_cfg, dict) and init_cfg.get('type') == 'Pretrained':
            node['init_cfg'] = None
        for child in node.values():
            without_downloads(child)
    elif isinstance(node, (list, tuple)):
        for child in node:
            without_downloads(child)
    return node


def build(config: Config) -> torch.nn.Module:
    library = pytest.importorskip(config.default_scope)
    assert library
    init_default_scope(config.default_scope)
    model = without_downloads(config.model)
    if config.get('data_preprocessor') is not None and config.default_scope == 'mmpretrain':
        model.setdefault('data_preprocessor', config.data_preprocessor)  # as the Runner does
    return MODELS.build(model)


def attention_in(path: Path) -> tuple[str, dict] | None:
    for name in sorted(ATTENTION, key=len, reverse=True):
        if name in path.stem:
            return ATTENTION[name]
    return None


def step(model: torch.nn.Module, config: Config) -> None:
    """Take one training step on noise, and predict once (an SSD of mmdet's would stop there)."""
    if config.default_scope == 'mmpretrain':
        from mmpretrain.structures import DataSample

        data = dict(
            inputs=[torch.randint(0, 256, (3, 64, 48), dtype=torch.uint8)] * 2,
            data_samples=[DataSample().set_gt_label(i) for i in (0, 2)],
        )
    else:
        from mmdet.testing import demo_mm_inputs

        roi_head = getattr(model, 'roi_head', None)
        data = demo_mm_inputs(
            2,
            [(3, 96, 96)] * 2,
            num_classes=3,
            num_items=[2, 2],
            with_mask=hasattr(roi_head, 'mask_head'),
        )
    wrapper = build_optim_wrapper(model, config.optim_wrapper)
    model.train()
    data = model.data_preprocessor(data, True)
    loss, logged = model.parse_losses(model(**data, mode='loss'))
    assert all(torch.isfinite(value).all() for value in logged.values()), logged
    wrapper.update_params(loss)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    if roi := getattr(model, 'roi_head', None):
        roi.test_cfg.max_per_img = 2
        model.rpn_head.test_cfg.max_per_img = 10
    with torch.no_grad():
        assert len(model.eval()(**data, mode='predict')) == 2


@pytest.mark.parametrize('path', IMAGENET + DETECTION + SMALL, ids=lambda path: path.stem)
def test_config_is_what_its_name_says_and_trains_one_step(path: Path) -> None:
    config = Config.fromfile(path)
    model = build(config)
    layers = [insertion.layer for insertion in inserted_layers(model).values()]
    if isinstance(model.backbone, KANet):
        layers += [
            part.attention for part in model.backbone.modules() if hasattr(part, 'attention')
        ]
    wanted = attention_in(path)
    assert bool(layers) == (wanted is not None)
    for layer in layers:
        assert type(layer).__name__ == wanted[0]
        assert all(getattr(layer, key) == value for key, value in wanted[1].items())
        assert layer.transforms == 'v' and layer.coefficient_norm is not None
        # In KANet attention is a part of the network, elsewhere an addition that starts as nothing.
        assert layer.residual is not isinstance(model.backbone, KANet)
    step(model, config)


def test_every_variant_of_the_paper_has_a_config() -> None:
    assert {path.stem.removesuffix('_8xb64-150e_in1k') for path in IMAGENET} == {
        'kanet-kv',
        'kanet-qkv',
        'attnnet',
        'attnnet-pool',
        'mobilenetv2-kao',
        'kanet-without-kao',
        'mobilenetv2',
    }
    names = ' '.join(path.stem for path in DETECTION)
    for words in (
        'ssdlite_kanet.*coco',
        'ssdlite_kanet.*voc',
        'retinanet_kanet.*coco',
        'retinanet_kanet.*voc',
        'mask-rcnn.*kao-kv',
        'mask-rcnn.*kao-qkv',
    ):
        first, last = words.split('.*')
        assert any(first in name and last in name for name in names.split()), words


@pytest.mark.parametrize('path', IMAGENET, ids=lambda path: path.stem)
def test_imagenet_configs_differ_in_the_backbone_only(path: Path) -> None:
    config = Config.fromfile(path)
    reference = Config.fromfile(FOLDER / 'imagenet' / 'kanet-kv_8xb64-150e_in1k.py')
    backbone, other = config.model.pop('backbone'), reference.model.pop('backbone')
    assert config.to_dict() == reference.to_dict()
    assert {key for key in other if backbone.get(key) != other[key]} <= {'arch', 'attention'}


def test_imagenet_schedule_is_the_papers() -> None:
    config = Config.fromfile(FOLDER / 'imagenet' / 'kanet-kv_8xb64-150e_in1k.py')
    assert config.train_dataloader.batch_size * 8 == config.auto_scale_lr.base_batch_size == 512
    optimizer = torch.optim.SGD(
        [torch.nn.Parameter(torch.zeros(1))], lr=config.optim_wrapper.optimizer.lr
    )
    (schedule,) = config.param_scheduler
    assert schedule.pop('type') == 'MultiStepLR'
    scheduler = MultiStepLR(optimizer, **schedule)
    rates = []
    for _ in range(config.train_cfg.max_epochs):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([0.1] * 80 + [1e-2] * 25 + [1e-3] * 15 + [1e-4] * 30)
    assert config.optim_wrapper.optimizer.momentum == 0.9


def test_imagenet_pictures_are_scaled_to_256_and_cropped_to_224() -> None:
    pytest.importorskip('mmpretrain')
    init_default_scope('mmpretrain')
    config = Config.fromfile(FOLDER / 'imagenet' / 'kanet-kv_8xb64-150e_in1k.py')
    for loader in (config.train_dataloader, config.val_dataloader):
        resize, crop = (TRANSFORMS.build(transform) for transform in loader.dataset.pipeline[1:3])
        results = dict(img=np.zeros((480, 640, 3), np.uint8), img_shape=(480, 640))
        results = resize(results)
        assert results['img'].shape == (256, 256, 3)
        assert crop(results)['img'].shape == (224, 224, 3)


def test_dropout_drops_a_fifth_in_training_and_nothing_else() -> None:
    model = build(Config.fromfile(FOLDER / 'imagenet' / 'kanet-kv_8xb64-150e_in1k.py'))
    features = (torch.ones(8, 1280),)
    dropped = model.head.train().pre_logits(features)
    assert 0.15 < (dropped == 0).float().mean() < 0.25
    assert torch.equal(model.head.eval().pre_logits(features), features[0])
    assert [name for name, _ in model.head.named_parameters()] == ['fc.weight', 'fc.bias']
    with pytest.raises(ValueError, match='dropout must be from 0 to below 1, got 1'):
        MODELS.build(
            dict(type='kronattn_mm.DropoutLinearClsHead', num_classes=2, in_channels=4, dropout=1)
        )


def test_ssd_head_is_mmdets_and_evaluates() -> None:
    config = Config.fromfile(FOLDER / 'detection' / 'ssdlite_kanet-kv-scratch_8xb24-600e_coco.py')
    model = build(config)
    theirs = dict(config.model.bbox_head, type='SSDHead')
    head = MODELS.build(
        dict(theirs, train_cfg=config.model.train_cfg, test_cfg=config.model.test_cfg)
    )
    head.load_state_dict(model.bbox_head.state_dict(), strict=True)
    features = tuple(torch.randn(1, channels, 4, 4) for channels in head.in_channels)
    for ours, each in zip(model.bbox_head.eval()(features), head.eval()(features), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, each, strict=True))


def test_configs_parse_where_a_wheel_puts_them(tmp_path: Path) -> None:
    shipped = tmp_path / 'kronattn_mm' / '.mim' / 'configs'
    shutil.copytree(ROOT / 'configs', shipped)
    for path in IMAGENET + DETECTION + SMALL:
        copied = Config.fromfile(shipped / path.relative_to(ROOT / 'configs'))
        assert copied.model == Config.fromfile(path).model


def test_metafile_names_the_configs() -> None:
    content = yaml.safe_load((FOLDER / 'metafile.yml').read_text(encoding='utf-8'))
    named = {entry['Config']: entry for entry in content['Models']}
    for path in IMAGENET + DETECTION:
        entry = named[path.relative_to(ROOT).as_posix()]
        assert entry['Name'] == path.stem
        assert 'Results' not in entry and 'Weights' not in entry, 'nothing was trained'
    assert all((ROOT / config).is_file() for config in named)
    collections = {collection['Name'] for collection in content['Collections']}
    assert all(entry['In Collection'] in collections for entry in named.values())
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text(encoding='utf-8'))
    assert 'configs/kronecker_attention/metafile.yml' in index['Import']
    readme = (FOLDER / 'README.md').read_text(encoding='utf-8')
    for path in IMAGENET + DETECTION + SMALL:
        assert f'({path.relative_to(FOLDER).as_posix()})' in readme, path.name


# -- the two small configs, from files to a score ------------------------------------------------


def short(config: Config, data: Path, work_dir: Path) -> Config:
    for loader in (config.train_dataloader, config.val_dataloader, config.test_dataloader):
        loader.batch_size = 4
        loader.dataset.data_root = f'{data}/'
    config.train_cfg.update(max_epochs=1, val_interval=1)
    config.work_dir = str(work_dir)
    config.log_level = 'ERROR'
    config.default_hooks.logger.interval = 1
    return config


def test_classifier_trains_on_folders_of_pictures(tmp_path: Path) -> None:
    pytest.importorskip('mmpretrain')
    config = Config.fromfile(FOLDER / 'small' / 'kanet-kv_cifar10.py')
    generator = np.random.default_rng(0)
    for split in ('train', 'test'):
        for name in config.classes:
            folder = tmp_path / 'data' / split / name
            folder.mkdir(parents=True)
            image = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            cv2.imwrite(str(folder / '0.jpg'), image)
    runner = Runner.from_cfg(short(config, tmp_path / 'data', tmp_path / 'work'))
    runner.train()
    assert runner.iter == 3
    assert set(runner.test()) == {'accuracy/top1'}


def voc_picture(folder: Path, name: str, generator: np.random.Generator) -> None:
    image = np.full((240, 320, 3), 200, np.uint8)
    root = ElementTree.Element('annotation')
    size = ElementTree.SubElement(root, 'size')
    for tag, value in (('width', 320), ('height', 240), ('depth', 3)):
        ElementTree.SubElement(size, tag).text = str(value)
    for label in ('RBC', 'WBC', 'Platelets'):
        x, y = (int(v) for v in generator.integers(40, 180, 2))
        cv2.circle(image, (x, y), 20, (90, 60, 150), -1)
        item = ElementTree.SubElement(root, 'object')
        ElementTree.SubElement(item, 'name').text = label
        ElementTree.SubElement(item, 'difficult').text = '0'
        box = ElementTree.SubElement(item, 'bndbox')
        for tag, value in zip(
            ('xmin', 'ymin', 'xmax', 'ymax'), (x - 20, y - 20, x + 20, y + 20), strict=True
        ):
            ElementTree.SubElement(box, tag).text = str(value)
    cv2.imwrite(str(folder / 'JPEGImages' / f'{name}.jpg'), image)
    ElementTree.ElementTree(root).write(folder / 'Annotations' / f'{name}.xml')


def test_detector_trains_on_voc_and_evaluates(tmp_path: Path) -> None:
    pytest.importorskip('mmdet')
    folder = tmp_path / 'data' / 'VOC2007'
    for part in ('JPEGImages', 'Annotations', 'ImageSets/Main'):
        (folder / part).mkdir(parents=True)
    generator = np.random.default_rng(0)
    for split in ('trainval', 'test'):
        names = [f'{split}_{i}' for i in range(4)]
        for name in names:
            voc_picture(folder, name, generator)
        (folder / 'ImageSets' / 'Main' / f'{split}.txt').write_text('\n'.join(names))
    config = short(
        Config.fromfile(FOLDER / 'small' / 'ssdlite_kanet-kv_bccd.py'),
        tmp_path / 'data',
        tmp_path / 'work',
    )
    runner = Runner.from_cfg(config)
    runner.train()
    assert {'pascal_voc/mAP', 'pascal_voc/AP50'} == set(runner.test())
    assert len(list((tmp_path / 'work').rglob('vis_image/val_*.png'))) == 1


def test_real_sets_are_read(shared: Path) -> None:
    pytest.importorskip('mmdet')
    init_default_scope('mmdet')
    config = Config.fromfile(FOLDER / 'small' / 'ssdlite_kanet-kv_bccd.py')
    for loader, number in ((config.train_dataloader, 292), (config.test_dataloader, 72)):
        loader.dataset.data_root = f'{shared}/data/bccd_mini/'
        dataset = DATASETS.build(loader.dataset)
        assert len(dataset) == number
        sample = dataset[0]
        assert sample['inputs'].shape == (3, 192, 192)
        assert len(sample['data_samples'].gt_instances) > 0
