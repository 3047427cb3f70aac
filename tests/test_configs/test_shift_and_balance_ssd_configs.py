"""Detection in configs/shift_and_balance/ssd: what the configs say, a step, and a training."""

import copy
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
import torch
import yaml

pytest.importorskip('mmdet')

import mmdet
from mmdet.testing import demo_mm_inputs
from mmengine.config import Config
from mmengine.optim import CosineAnnealingLR
from mmengine.registry import DATASETS, MODELS, init_default_scope

from kronattn_mm.layers import ShiftBalanceConv2d, SqueezeExciteConv2d

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / 'configs' / 'shift_and_balance' / 'ssd'
STOCK = Path(mmdet.__file__).parent / '.mim' / 'tools'
PAPER = sorted(FOLDER.glob('ssd_mobilenetv2-*.py'))
UPSTREAM = sorted(path for path in FOLDER.glob('*.py') if path not in PAPER)
SMALL = sorted((FOLDER / 'small').glob('*.py'))
EXPANSION_CHANNELS = {'0.35': 192, '0.5': 288, '0.75': 432, '1.0': 576}
ATTENDED = {'sb': ShiftBalanceConv2d, 'se': SqueezeExciteConv2d}


@functools.cache
def parse(path: Path) -> Config:
    return Config.fromfile(path)


def read(path: Path) -> Config:
    """Return what a config says, to be changed at will; parsing is what takes time here."""
    return copy.deepcopy(parse(path))


def build(config: Config) -> torch.nn.Module:
    init_default_scope('mmdet')
    if (config.model.backbone.get('init_cfg') or {}).get('type') == 'Pretrained':
        config.model.backbone.init_cfg = None
    model = MODELS.build(config.model)
    # SSD's L2Norm of upstream has whatever lay in memory as its weight until then.
    model.init_weights()
    return model


def attended_convs(model: torch.nn.Module) -> list[type]:
    return [
        type(module) for module in model.modules() if isinstance(module, tuple(ATTENDED.values()))
    ]


def variant(path: Path) -> str | None:
    return next((word for word in ATTENDED if word in path.stem.split('_')[1].split('-')), None)


def loss_and_prediction(model: torch.nn.Module, size: int, number: int = 2) -> None:
    data = demo_mm_inputs(number, [(3, size, size)] * number, num_classes=3, num_items=[2] * number)
    data = model.data_preprocessor(data, True)
    with torch.no_grad():
        _, logged = model.train().parse_losses(model(**data, mode='loss'))
        model.eval()
        assert len(model(**data, mode='predict')) == number
    assert logged['loss_cls'] > 0 and all(torch.isfinite(loss) for loss in logged.values()), logged


@pytest.mark.parametrize('path', PAPER + SMALL, ids=lambda path: path.stem)
def test_config_is_what_its_name_says(path: Path) -> None:
    model = build(read(path))
    width = path.stem.split('-x')[1].split('-')[0].split('_')[0]
    assert model.backbone.widen_factor == float(width)
    attention = ATTENDED.get(variant(path))
    assert attended_convs(model) == ([] if attention is None else [attention] * 50)
    with torch.no_grad():
        maps = model.neck(model.backbone(torch.zeros(2, 3, 64, 64)))
    assert tuple(level.shape[1] for level in maps) == tuple(model.bbox_head.in_channels)
    assert EXPANSION_CHANNELS[width] in model.bbox_head.in_channels
    # Each variant once: widths differ in nothing else.
    if width == '0.35' or path.stem == 'ssd_mobilenetv2-x0.5-sb_bccd':
        loss_and_prediction(model, 96)


def test_every_width_and_variant_has_a_config() -> None:
    assert {path.stem for path in PAPER} == {
        f'ssd_mobilenetv2-x{width}{attention}_1xb32-200e_voc0712'
        for width in EXPANSION_CHANNELS
        for attention in ('', '-sb', '-se')
    }
    names = [path.stem for path in SMALL]
    for data in ('x0.5{}_bccd', 'x1.0{}_voc-mini'):
        assert all(
            f'ssd_mobilenetv2-{data.format(attention)}' in names
            for attention in ('', '-sb', '-sb-after-norm', '-se')
        )


@pytest.mark.parametrize(
    'path', [path for path in PAPER + SMALL if variant(path)], ids=lambda path: path.stem
)
def test_variants_differ_from_the_static_network_in_nothing_else(path: Path) -> None:
    attended = read(path)
    static = read(path.with_name(re.sub('-(sb|se)[^_]*_', '_', path.name)))
    (entry,) = attended.model.backbone.pop('convs')
    assert entry.layer.get('place', 'before_norm').replace('_', '-') in f'{path.stem} before-norm'
    assert attended.to_dict() == static.to_dict()


def test_schedule_and_data_are_the_papers() -> None:
    config = read(FOLDER / 'ssd_mobilenetv2-x1.0_1xb32-200e_voc0712.py')
    optimizer = torch.optim.SGD(
        [torch.nn.Parameter(torch.zeros(1))], lr=config.optim_wrapper.optimizer.lr
    )
    (schedule,) = config.param_scheduler
    schedule.pop('type')
    scheduler = CosineAnnealingLR(optimizer, **schedule)
    rates = []
    for _ in range(config.train_cfg.max_epochs):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        scheduler.step()
    wanted = 0.005 * (1 + np.cos(np.pi * np.arange(200) / 200))
    np.testing.assert_allclose(rates, wanted, atol=1e-9)
    assert optimizer.param_groups[0]['lr'] < 1e-6
    assert dict(config.optim_wrapper.optimizer) == dict(
        type='SGD', lr=0.01, momentum=0.9, weight_decay=4e-5
    )
    assert config.train_dataloader.batch_size == 32
    sets = config.train_dataloader.dataset.datasets
    assert [(each.type, each.ann_file) for each in sets] == [
        ('VOCDataset', 'VOC2007/ImageSets/Main/trainval.txt'),
        ('VOCDataset', 'VOC2012/ImageSets/Main/trainval.txt'),
    ]
    assert config.test_dataloader.dataset.ann_file == 'VOC2007/ImageSets/Main/test.txt'
    assert (config.val_evaluator.type, config.val_evaluator.eval_mode) == ('VOCMetric', '11points')
    assert [(each.eval_mode, each.prefix) for each in config.test_evaluator] == [
        ('11points', 'pascal_voc'),
        ('area', 'pascal_voc_area'),
    ]


def test_every_object_has_a_prior_and_negatives_are_three_to_one() -> None:
    """The loss is that of pytorch-ssd: computed here from its words for one picture."""
    from mmengine.structures import InstanceData

    torch.manual_seed(3)
    model = build(read(FOLDER / 'ssd_mobilenetv2-x0.35_1xb32-200e_voc0712.py'))
    head, sizes = model.bbox_head, [(n, n) for n in (19, 10, 5, 3, 2, 1)]
    # The second box is so small that no prior reaches an IoU of one half with it.
    boxes = torch.tensor([[40.0, 50.0, 200.0, 190.0], [7.0, 8.0, 17.0, 20.0]])
    labels = torch.tensor([4, 11])
    scores = [torch.randn(1, 6 * 21, *size) for size in sizes]
    deltas = [torch.randn(1, 6 * 4, *size) for size in sizes]
    meta = dict(img_shape=(300, 300), pad_shape=(300, 300))
    losses = head.loss_by_feat(scores, deltas, [InstanceData(bboxes=boxes, labels=labels)], [meta])

    priors = torch.cat(head.prior_generator.grid_priors(sizes, device='cpu'))
    flat_scores = torch.cat([each.permute(0, 2, 3, 1).reshape(-1, 21) for each in scores])
    flat_deltas = torch.cat([each.permute(0, 2, 3, 1).reshape(-1, 4) for each in deltas])
    corner = torch.max(priors[:, None, :2], boxes[:, :2])
    other = torch.min(priors[:, None, 2:], boxes[:, 2:])
    shared = (other - corner).clamp(min=0).prod(-1)
    area = [(each[:, 2:] - each[:, :2]).prod(1) for each in (priors, boxes)]
    overlap = shared / (area[0][:, None] + area[1] - shared)
    best, target = overlap.max(1)
    assert overlap[:, 1].max() < 0.5
    for index, prior in enumerate(overlap.argmax(0)):
        best[prior], target[prior] = 1.0, index
    positive = best >= 0.5
    wanted = torch.where(positive, labels[target], 20)  # mmdet's background is the last class
    entropy = torch.nn.functional.cross_entropy(flat_scores, wanted, reduction='none')
    negatives = entropy[~positive].topk(3 * int(positive.sum())).values
    loss_cls = (entropy[positive].sum() + negatives.sum()) / positive.sum()
    centre = [(each[:, :2] + each[:, 2:]) / 2 for each in (priors, boxes[target])]
    size = [each[:, 2:] - each[:, :2] for each in (priors, boxes[target])]
    encoded = torch.cat(
        [(centre[1] - centre[0]) / size[0] / 0.1, (size[1] / size[0]).log() / 0.2], 1
    )
    loss_bbox = (
        torch.nn.functional.smooth_l1_loss(
            flat_deltas[positive], encoded[positive], reduction='sum'
        )
        / positive.sum()
    )
    assert positive.sum() > 2
    torch.testing.assert_close(losses['loss_cls'][0].squeeze(), loss_cls)
    torch.testing.assert_close(losses['loss_bbox'][0].squeeze(), loss_bbox)


@pytest.mark.parametrize(
    ('path', 'number'),
    [
        (
            path,
            50
            if 'conv-cfg' not in path.stem and 'mobilenetv2' in path.stem
            else 52
            if 'mobilenetv2' in path.stem
            else 15,
        )
        for path in UPSTREAM
    ],
    ids=lambda value: getattr(value, 'stem', None),
)
def test_upstreams_own_configs_with_shift_and_balance(path: Path, number: int) -> None:
    config = read(path)
    model = build(config)
    assert attended_convs(model) == [ShiftBalanceConv2d] * number
    base = (
        'ssd/ssdlite_mobilenetv2-scratch_8xb24-600e_coco.py'
        if number != 15
        else 'pascal_voc/ssd300_voc0712.py'
    )
    plain_config = read(STOCK.parent / 'configs' / base)
    plain = build(plain_config).state_dict()
    ours = model.state_dict()
    assert all(ours[key].shape == value.shape for key, value in plain.items())
    assert all(
        '.attention.' in key and key.startswith('backbone.') for key in ours.keys() - plain.keys()
    )
    loss_and_prediction(model, *((300, 1) if number == 15 else (96, 2)))
    # Everything but the backbone's convolutions and the head's type is upstream's.
    for each in (config, plain_config):
        for key in ('type', 'base', 'convs', 'conv_cfg'):
            each.model.backbone.pop(key, None)
        each.model.bbox_head.pop('type')
    for key in ('model', 'train_dataloader', 'optim_wrapper', 'param_scheduler', 'train_cfg'):
        assert without_scope(config[key]) == without_scope(plain_config[key]), key


def without_scope(node):
    if isinstance(node, dict):
        return {key: without_scope(value) for key, value in node.items() if key != '_scope_'}
    return [without_scope(value) for value in node] if isinstance(node, (list, tuple)) else node


def test_initialisation_of_upstream_reaches_the_attended_convolutions() -> None:
    config = read(FOLDER / 'ssdlite_mobilenetv2-sb-scratch_8xb24-600e_coco.py')
    init_default_scope('mmdet')
    backbone = MODELS.build(config.model.backbone)
    with torch.no_grad():
        backbone.layer6[1].expand_conv.conv.weight.zero_()
    backbone.init_weights()
    # TruncNormal with std 0.03, written for layer='Conv2d'
    assert 0.02 < backbone.layer6[1].expand_conv.conv.weight.std() < 0.035
    assert torch.equal(
        backbone.layer6[1].expand_conv.conv.attention.lambda_, torch.full((960,), 0.1)
    )


def test_metafile_and_readme_name_the_configs() -> None:
    content = yaml.safe_load((FOLDER.parent / 'metafile.yml').read_text(encoding='utf-8'))
    named = {
        entry['Config']: entry
        for entry in content['Models']
        if entry['In Collection'] == 'Shift-and-Balance, SSD'
    }
    assert set(named) == {path.relative_to(ROOT).as_posix() for path in PAPER + UPSTREAM}
    for config, entry in named.items():
        assert entry['Name'] == Path(config).stem
        assert 'Results' not in entry and 'Weights' not in entry, 'nothing was trained'
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text(encoding='utf-8'))
    assert 'configs/shift_and_balance/metafile.yml' in index['Import']
    readme = (FOLDER / 'README.md').read_text(encoding='utf-8')
    for path in PAPER + UPSTREAM + SMALL:
        assert f'({path.relative_to(FOLDER).as_posix()})' in readme, path.name


def test_real_sets_are_read(shared: Path) -> None:
    init_default_scope('mmdet')
    for name, data, numbers in (
        ('ssd_mobilenetv2-x0.5-sb_bccd', 'bccd_mini', (292, 72)),
        ('ssd_mobilenetv2-x1.0-sb_voc-mini', 'voc_mini', (5 * 96, 71)),
    ):
        config = read(FOLDER / 'small' / f'{name}.py')
        for loader, number in zip(
            (config.train_dataloader, config.test_dataloader), numbers, strict=True
        ):
            inner = loader.dataset.get('dataset', loader.dataset)
            inner.data_root = f'{shared}/data/{data}/'
            dataset = DATASETS.build(loader.dataset)
            assert len(dataset) == number
            assert dataset[0]['inputs'].shape == (3, 192, 192)


# -- mmdet's own programs ------------------------------------------------------------------------


def draw_set(folder: Path) -> None:
    """Write 16 and 4 pictures of three discs each, in VOC's layout."""
    for part in ('JPEGImages', 'Annotations', 'ImageSets/Main'):
        (folder / 'VOC2007' / part).mkdir(parents=True)
    generator = np.random.default_rng(0)
    for split, number in (('trainval', 16), ('test', 4)):
        names = [f'{split}_{i}' for i in range(number)]
        for name in names:
            draw_picture(folder / 'VOC2007', name, generator)
        (folder / 'VOC2007' / 'ImageSets' / 'Main' / f'{split}.txt').write_text('\n'.join(names))


def draw_picture(folder: Path, name: str, generator: np.random.Generator) -> None:
    image = np.full((240, 320, 3), 200, np.uint8)
    root = ElementTree.Element('annotation')
    size = ElementTree.SubElement(root, 'size')
    for tag, value in (('width', 320), ('height', 240), ('depth', 3)):
        ElementTree.SubElement(size, tag).text = str(value)
    for label, radius in (('RBC', 20), ('WBC', 40), ('Platelets', 10)):
        x, y = (int(value) for value in generator.integers(50, 190, 2))
        cv2.circle(image, (x, y), radius, (90, 60, 5 * radius), -1)
        item = ElementTree.SubElement(root, 'object')
        ElementTree.SubElement(item, 'name').text = label
        ElementTree.SubElement(item, 'difficult').text = '0'
        box = ElementTree.SubElement(item, 'bndbox')
        corners = (x - radius, y - radius, x + radius, y + radius)
        for tag, value in zip(('xmin', 'ymin', 'xmax', 'ymax'), corners, strict=True):
            ElementTree.SubElement(box, tag).text = str(value)
    cv2.imwrite(str(folder / 'JPEGImages' / f'{name}.jpg'), image)
    ElementTree.ElementTree(root).write(folder / 'Annotations' / f'{name}.xml')


def run(script: str, *arguments: str | Path) -> str:
    """Run a tool of mmdet's as a program of its own and return what it wrote."""
    environment = dict(
        os.environ,
        OMP_NUM_THREADS='1',
        PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')]),
    )
    done = subprocess.run(
        [sys.executable, str(STOCK / script), *map(str, arguments)],
        text=True,
        capture_output=True,
        env=environment,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def train_and_test(config: Path, options: list[str], epochs: int, work_dir: Path) -> float:
    """Return the mAP that test.py prints, after asserting that train.py had found the same."""
    options = ['--cfg-options', *options]
    run(
        'train.py',
        config,
        '--work-dir',
        work_dir / 'train',
        *options,
        f'train_cfg.max_epochs={epochs}',
        f'train_cfg.val_interval={epochs}',
        f'default_hooks.checkpoint.interval={epochs}',
    )
    scalars = max((work_dir / 'train').glob('*/vis_data/scalars.json'))
    logged = [json.loads(line) for line in scalars.read_text(encoding='utf-8').splitlines()]
    losses = [line['loss'] for line in logged if 'loss' in line]
    assert losses[-1] < losses[0] and np.isfinite(losses).all()
    trained = next(line for line in logged if 'pascal_voc/mAP' in line)['pascal_voc/mAP']
    printed = run(
        'test.py',
        config,
        work_dir / 'train' / f'epoch_{epochs}.pth',
        '--work-dir',
        work_dir / 'test',
        *options,
    )
    tested = float(printed.split('pascal_voc/mAP:')[1].split()[0])
    assert tested == pytest.approx(trained, abs=1e-4)
    return tested


def data_options(data: Path) -> list[str]:
    return [f'{loader}_dataloader.dataset.data_root={data}/' for loader in ('train', 'val', 'test')]


@pytest.mark.slow
def test_shift_and_balance_trains_on_a_made_set(tmp_path: Path) -> None:
    draw_set(tmp_path / 'data')
    train_and_test(
        FOLDER / 'small' / 'ssd_mobilenetv2-x0.5-sb_bccd.py',
        [
            *data_options(tmp_path / 'data'),
            'default_hooks.logger.interval=1',
            'param_scheduler.0.end=4',
        ],
        6,
        tmp_path,
    )


@pytest.mark.slow
def test_shift_and_balance_trains_on_blood_cells(shared: Path, tmp_path: Path) -> None:
    mean_ap = train_and_test(
        FOLDER / 'small' / 'ssd_mobilenetv2-x0.5-sb_bccd.py',
        data_options(shared / 'data' / 'bccd_mini'),
        2,
        tmp_path,
    )
    assert mean_ap > 0
