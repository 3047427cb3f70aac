"""The figures of mmdet's and mmseg's own test.py with our configs are those that they are called.

Pascal VOC's mAP is computed here once more, in both of its modes, from the words of its devkit;
COCO's by pycocotools from the detections that were written; segmentation's from the pictures.
"""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip('mmdet')

import mmdet
from made_sets import draw_coco, draw_voc
from mmdet.datasets import CocoDataset, VOCDataset
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.registry import init_default_scope

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / 'configs'
VOC_MINI = 'shift_and_balance/ssd/small/ssd_mobilenetv2-x1.0_voc-mini.py'
COCO = 'efficient_attention/mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco.py'
SEGMENTATION = (
    'kronecker_attention/segmentation/deeplabv2_mobilenet-v2-d16_kao-kv_120_{}-161x161.py'
)


# -- Pascal VOC's mAP in its own words -------------------------------------------------------------


def overlap(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of boxes whose last row and column belong to them."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2]) + 1
    common = sides.clip(0).prod(1)
    areas = [(each[..., 2:] - each[..., :2] + 1).prod(-1) for each in (box, others)]
    return common / (areas[0] + areas[1] - common)


def average_precision(recall: np.ndarray, precision: np.ndarray, eleven: bool) -> float:
    if eleven:
        # 3 * 0.1 is a little more than 0.3: a recall of exactly 0.3 does not reach it, as in mmdet
        reached = [precision[recall >= step * 0.1] for step in range(11)]
        return sum(values.max() if len(values) else 0.0 for values in reached) / 11
    area, last = 0.0, 0.0
    for index, value in enumerate(recall):
        area += (value - last) * precision[index:].max()
        last = value
    return area


def reference_map(truths: list[dict], found: list[dict], classes: int, eleven: bool) -> float:
    """Mean over the classes that have an object.

    Args:
        truths: For each picture `boxes` (n, 4), `labels` (n,), `difficult` (n,).
        found: For each picture `boxes` (m, 4), `labels` (m,), `scores` (m,).
        classes: Number of classes.
        eleven: Whether at 11 recalls, or else the area.
    """
    values = []
    for label in range(classes):
        wanted = sum(int((t['labels'] == label)[~t['difficult']].sum()) for t in truths)
        if not wanted:
            continue
        ranked = sorted(
            (
                (-score, picture, index)
                for picture, each in enumerate(found)
                for index, score in enumerate(each['scores'])
                if each['labels'][index] == label
            )
        )
        taken, hits = set(), []
        for _, picture, index in ranked:
            truth = truths[picture]
            rows = np.flatnonzero(truth['labels'] == label)
            shares = overlap(found[picture]['boxes'][index], truth['boxes'][rows])
            if not len(rows) or shares.max() < 0.5:
                hits.append(0)
                continue
            row = rows[shares.argmax()]
            if truth['difficult'][row]:
                continue  # neither right nor wrong
            hits.append(int((picture, row) not in taken))
            taken.add((picture, row))
        right = np.cumsum(hits) if hits else np.zeros(0)
        precision = right / np.arange(1, len(right) + 1)
        values.append(average_precision(right / wanted, precision, eleven))
    return float(np.mean(values))


def test_the_two_modes_by_hand():
    """Two objects, found first and third of four: precisions 1, 1/2, 2/3, 2/4."""
    recall, precision = np.array([0.5, 0.5, 1.0, 1.0]), np.array([1, 1 / 2, 2 / 3, 2 / 4])
    assert average_precision(recall, precision, True) == pytest.approx((6 * 1 + 5 * 2 / 3) / 11)
    assert average_precision(recall, precision, False) == pytest.approx(0.5 + 0.5 * 2 / 3)


def test_traps_that_the_page_names(tmp_path):
    from mmdet.evaluation.functional import average_precision as upstream

    # a recall of 0.3 counts at 0, 0.1 and 0.2 alone
    measured = upstream(np.array([0.3]), np.array([1.0]), '11points')
    assert measured == pytest.approx(3 / 11)
    # names of VOC's own classes for a folder of its name
    init_default_scope('mmdet')
    evaluator = Evaluator(dict(type='VOCMetric'))
    evaluator.dataset_meta = dict(classes=tuple(map(str, range(21))), dataset_type='VOC2007')
    box = torch.tensor([[1.0, 1.0, 9.0, 9.0]])
    one = dict(bboxes=box, labels=torch.tensor([0]))
    none = dict(bboxes=box[:0], labels=torch.tensor([], dtype=torch.long))
    found = dict(one, scores=torch.ones(1))
    evaluator.process([dict(gt_instances=one, ignored_instances=none, pred_instances=found)])
    with pytest.raises(IndexError):
        evaluator.evaluate(1)
    # a dictionary over the two evaluators
    config = tmp_path / 'config.py'
    for more, fails in (('', True), ('_delete_=True, ', False)):
        config.write_text(
            f'_base_ = {str(CONFIGS / VOC_MINI)!r}\n'
            f"test_evaluator = dict({more}type='VOCMetric')\n",
            encoding='utf-8',
        )
        if fails:
            with pytest.raises(TypeError, match='test_evaluator'):
                Config.fromfile(config)
        else:
            assert Config.fromfile(config).test_evaluator == dict(type='VOCMetric')


def made_detections(classes: int, seed: int) -> tuple[list[dict], list[dict]]:
    random = np.random.default_rng(seed)
    truths, found = [], []
    for _ in range(30):
        corners = random.integers(0, 60, (random.integers(0, 6), 2))
        boxes = np.concatenate([corners, corners + random.integers(8, 40, corners.shape)], 1)
        labels = random.integers(0, classes - 1, len(boxes))  # the last class has no object
        truths.append(dict(boxes=boxes, labels=labels, difficult=random.random(len(boxes)) < 0.2))
        kept = random.random(len(boxes)) < 0.8
        moved = np.concatenate([boxes[kept] + random.integers(-6, 7, (kept.sum(), 4))] * 2)
        guessed = np.concatenate([labels[kept]] * 2)
        found.append(dict(boxes=moved, labels=guessed, scores=random.random(len(moved))))
    return truths, found


@pytest.mark.parametrize('config', [VOC_MINI, 'kronecker_attention/small/ssdlite_kanet-kv_bccd.py'])
def test_each_figure_of_a_config_is_that_of_its_mode(config):
    """mmdet's metric, built as the config says, against the words of the devkit."""
    read = Config.fromfile(CONFIGS / config)
    init_default_scope('mmdet')
    evaluator = Evaluator(read.test_evaluator)
    classes = ('a', 'b', 'c', 'd')
    evaluator.dataset_meta = dict(classes=classes)
    truths, found = made_detections(len(classes), 0)
    for truth, each in zip(truths, found, strict=True):
        difficult = truth['difficult']
        evaluator.process(
            [
                dict(
                    gt_instances=_instances(truth, ~difficult),
                    ignored_instances=_instances(truth, difficult),
                    pred_instances={
                        **_instances(each, slice(None)),
                        'scores': torch.tensor(each['scores']),
                    },
                )
            ]
        )
    measured = evaluator.evaluate(len(truths))
    eleven, area = (reference_map(truths, found, 4, mode) for mode in (True, False))
    assert abs(eleven - area) > 0.005  # the modes can be told apart
    assert measured['pascal_voc/mAP'] == pytest.approx(eleven, abs=1e-5)
    if config == VOC_MINI:
        assert measured['pascal_voc_area/mAP'] == pytest.approx(area, abs=1e-5)
    else:
        assert set(measured) == {'pascal_voc/mAP', 'pascal_voc/AP50'}


def _instances(values: dict, rows: object) -> dict:
    boxes = torch.tensor(values['boxes'][rows], dtype=torch.float32)
    return dict(bboxes=boxes, labels=torch.tensor(values['labels'][rows]))


@pytest.mark.parametrize(
    'config',
    [
        'kronecker_attention/detection/retinanet_kanet-kv_fpn_voc0712.py',
        'kronecker_attention/detection/ssdlite_kanet-kv_voc0712.py',
        'shift_and_balance/ssd/ssd300-sb_voc0712.py',
    ],
)
def test_voc_configs_name_both_modes(config):
    evaluators = Config.fromfile(CONFIGS / config).test_evaluator
    modes = {each.prefix: each.eval_mode for each in evaluators}
    assert modes == {'pascal_voc': '11points', 'pascal_voc_area': 'area'}


# -- whole runs of test.py -------------------------------------------------------------------------


def run(library: object, config: Path, checkpoint: Path, *arguments: str | Path) -> str:
    """Run the library's own test.py as a program of its own."""
    script = Path(library.__file__).parent / '.mim' / 'tools' / 'test.py'
    paths = [str(ROOT), str(Path(__file__).parent), os.environ.get('PYTHONPATH', '')]
    done = subprocess.run(
        [sys.executable, str(script), str(config), str(checkpoint), *map(str, arguments)],
        text=True,
        capture_output=True,
        env=dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=os.pathsep.join(paths)),
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def metrics_of(work_dir: Path) -> dict[str, float]:
    return json.loads(next(iter(sorted(work_dir.glob('*/*.json')))).read_text(encoding='utf-8'))


@pytest.fixture
def nothing_to_load(tmp_path: Path) -> Path:
    path = tmp_path / 'empty.pth'
    torch.save(dict(state_dict={}, meta={}), path)
    return path


def truth_of_xml(folder: Path, name: str) -> dict:
    """Boxes as written, which count from 1; overlaps are the same wherever one counts from."""
    file = folder / 'VOC2007' / 'Annotations' / f'{name}.xml'
    objects, classes = ElementTree.parse(file).findall('object'), VOCDataset.METAINFO['classes']
    boxes = [
        [int(each.find('bndbox').findtext(edge)) - 1 for edge in ('xmin', 'ymin', 'xmax', 'ymax')]
        for each in objects
    ]
    return dict(
        boxes=np.array(boxes, dtype=float).reshape(-1, 4),
        labels=np.array([classes.index(each.findtext('name')) for each in objects], dtype=int),
        difficult=np.array([each.findtext('difficult') == '1' for each in objects], dtype=bool),
    )


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['made', 'photographs'])
def test_voc_by_test_py(kind, request, tmp_path, nothing_to_load):
    if kind == 'made':
        data = tmp_path / 'data'
        lists = {'Main/trainval': 1, 'Main/test': 24}
        draw_voc(data / 'VOC2007', lists, ['cat', 'dog', 'bus'], seed=3)
    else:
        data = request.getfixturevalue('shared') / 'data' / 'voc_mini'
    config = tmp_path / 'config.py'
    config.write_text(
        f'_base_ = {str(CONFIGS / VOC_MINI)!r}\n'
        "custom_imports = dict(imports=['kronattn_mm', 'noisy_truth'])\n"
        "model = dict(_delete_=True, type='NoisyTruth', classes=20, noise=0.12)\n"
        f'test_dataloader = dict(dataset=dict(data_root={str(data) + "/"!r}))\n',
        encoding='utf-8',
    )
    out = tmp_path / 'found.pkl'
    run(mmdet, config, nothing_to_load, '--work-dir', tmp_path / 'test', '--out', out)
    measured = metrics_of(tmp_path / 'test')
    with out.open('rb') as stream:
        results = pickle.load(stream)
    found = [
        dict(
            boxes=each['pred_instances']['bboxes'].numpy().astype(float),
            labels=each['pred_instances']['labels'].numpy(),
            scores=each['pred_instances']['scores'].numpy(),
        )
        for each in results
    ]
    truths = [truth_of_xml(data, each['img_id']) for each in results]
    eleven, area = (reference_map(truths, found, 20, mode) for mode in (True, False))
    assert 0.2 < area < 0.95 and abs(eleven - area) > 0.002
    assert measured['pascal_voc/mAP'] == pytest.approx(eleven, abs=1e-5)
    assert measured['pascal_voc_area/mAP'] == pytest.approx(area, abs=1e-5)
    # one figure alone, as the page says
    option = 'test_evaluator.0.eval_mode=area'
    run(mmdet, config, nothing_to_load, '--work-dir', tmp_path / 'area', '--cfg-options', option)
    assert metrics_of(tmp_path / 'area')['pascal_voc/mAP'] == pytest.approx(area, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['made', 'photographs'])
def test_coco_by_test_py(kind, request, tmp_path, nothing_to_load):
    """The truth itself scores 1; noisy detections score what pycocotools says of the files."""
    from pycocotools.coco import COCO as Truth
    from pycocotools.cocoeval import COCOeval

    if kind == 'made':
        data = tmp_path / 'data'
        draw_coco(data, dict(val=12), CocoDataset.METAINFO['classes'])
    else:
        data = request.getfixturevalue('shared') / 'data' / 'coco_mini'
    file = data / 'annotations' / 'instances_val.json'
    config = tmp_path / 'config.py'
    config.write_text(
        f'_base_ = {str(CONFIGS / COCO)!r}\n'
        "custom_imports = dict(imports=['kronattn_mm', 'noisy_truth'])\n"
        "model = dict(_delete_=True, type='NoisyTruth', classes=80, noise=0.0, masks=True)\n"
        f'test_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict('
        f"data_root={str(data) + '/'!r}, ann_file='annotations/instances_val.json', "
        "data_prefix=dict(img='val/')))\n"
        f'test_evaluator = dict(ann_file={str(file)!r})\n',
        encoding='utf-8',
    )
    run(mmdet, config, nothing_to_load, '--work-dir', tmp_path / 'truth')
    measured = metrics_of(tmp_path / 'truth')
    assert measured['coco/bbox_mAP'] == measured['coco/segm_mAP'] == 1.0

    options = ['model.noise=0.12', f'test_evaluator.outfile_prefix={tmp_path / "found"}']
    run(mmdet, config, nothing_to_load, '--work-dir', tmp_path / 'noisy', '--cfg-options', *options)
    measured = metrics_of(tmp_path / 'noisy')
    truth = Truth(str(file))
    for kind in ('bbox', 'segm'):
        found = truth.loadRes(str(tmp_path / f'found.{kind}.json'))
        evaluation = COCOeval(truth, found, kind)
        evaluation.params.maxDets = [100, 300, 1000]  # mmdet's
        evaluation.evaluate()
        evaluation.accumulate()
        precision = evaluation.eval['precision'][..., 0, 0]
        whole = precision[precision > -1].mean()
        at_half = evaluation.eval['precision'][0, :, :, 0, 0]
        assert 0.05 < whole < 0.9
        assert measured[f'coco/{kind}_mAP'] == pytest.approx(whole, abs=6e-4)
        assert measured[f'coco/{kind}_mAP_50'] == pytest.approx(
            at_half[at_half > -1].mean(), abs=6e-4
        )


SEG_MODEL = """
model = dict(
    _delete_=True, type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor', mean=[127.5] * 3, std=[127.5] * 3, bgr_to_rgb=True,
        pad_val=0, seg_pad_val=255, test_cfg=dict(size_divisor=16)),
    backbone=dict(
        type='kronattn_mm.Plugged', base='mmseg.MobileNetV2',
        insert=[dict(at='layer7', layer=dict(
            type='kronattn_mm.EfficientAttention2d', key_channels=16, value_channels=16))]),
    decode_head=dict(
        type='ASPPHead', in_channels=320, in_index=3, channels=256, dilations=(1,),
        num_classes=21, align_corners=True, norm_cfg=dict(type='BN')),
    train_cfg=dict(), test_cfg=dict(mode='whole'))
"""


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['made', 'photographs'])
def test_segmentation_by_test_py(kind, request, tmp_path, nothing_to_load):
    """Pixel accuracy and mIoU, against a table of pixels counted from the predicted pictures."""
    mmseg = pytest.importorskip('mmseg')
    if kind == 'made':
        data, checkpoint = tmp_path / 'data', nothing_to_load
        draw_voc(data, {'Segmentation/train': 1, 'Segmentation/val': 3}, ['cat'])
    else:
        shared = request.getfixturevalue('shared')
        data = shared / 'data' / 'voc_mini' / 'VOC2007'
        checkpoint = shared / 'weights' / 'deeplabv3_mobilenet_v2_voc_full.pth'
    config = tmp_path / 'config.py'
    config.write_text(
        f'_base_ = {str(CONFIGS / SEGMENTATION.format("voc"))!r}\n{SEG_MODEL}'
        f'test_dataloader = dict(dataset=dict(data_root={str(data)!r}))\n',
        encoding='utf-8',
    )
    option = f'test_evaluator.output_dir={tmp_path / "found"}'
    run(
        mmseg,
        config,
        checkpoint,
        '--work-dir',
        tmp_path / 'test',
        '--cfg-options',
        option,
        'env_cfg.dist_cfg.backend=gloo',
    )
    measured = metrics_of(tmp_path / 'test')
    table = np.zeros((21, 21), dtype=np.int64)  # truth, prediction
    for path in sorted((tmp_path / 'found').glob('*.png')):
        truth = np.asarray(Image.open(data / 'SegmentationClass' / path.name))
        found = np.asarray(Image.open(path))
        known = truth != 255
        np.add.at(table, (truth[known], found[known]), 1)
    right = np.diag(table)
    with np.errstate(invalid='ignore'):
        shares = right / (table.sum(0) + table.sum(1) - right)
    assert measured['aAcc'] == pytest.approx(100 * right.sum() / table.sum(), abs=0.01)
    assert measured['mIoU'] == pytest.approx(100 * np.nanmean(shares), abs=0.01)
    if kind == 'photographs':
        assert measured['mIoU'] > 35 and measured['aAcc'] > 80
