"""A made COCO set, and a config of ours made small enough to train on it within seconds."""

import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = 'mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco.py'
SIZE = 96

# The row of the paper with a ResNet-18 and narrow heads; data, length and seed are the test's.
SMALL_CONFIG = """
_base_ = '{base}'

classes = ('disc', 'box')
roi_head = dict(
    bbox_roi_extractor=dict(out_channels=32),
    bbox_head=dict(in_channels=32, fc_out_channels=64, num_classes=2),
    mask_roi_extractor=dict(out_channels=32),
    mask_head=dict(in_channels=32, conv_out_channels=32, num_convs=2, num_classes=2))
model = dict(
    backbone=dict(depth=18, frozen_stages=-1, norm_eval=False, init_cfg=None),
    neck=dict(in_channels=[64, 128, 256, 512], out_channels=32),
    rpn_head=dict(in_channels=32, feat_channels=32, anchor_generator=dict(scales=[4])),
    roi_head=roi_head,
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=100, max_per_img=50),
        rcnn=dict(sampler=dict(num=64))),
    test_cfg=dict(rpn=dict(nms_pre=100, max_per_img=50)))

resize = dict(type='Resize', scale=({size}, {size}), keep_ratio=True)
train_pipeline = [
    dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    resize, dict(type='RandomFlip', prob=0.5), dict(type='PackDetInputs')]
test_pipeline = [
    dict(type='LoadImageFromFile'), resize,
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='PackDetInputs',
         meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))]
data = dict(data_root='{data}/', metainfo=dict(classes=classes))
train_dataloader = dict(
    batch_size=2, num_workers=0, persistent_workers=False,
    dataset=dict(ann_file='train.json', data_prefix=dict(img='train/'), pipeline=train_pipeline,
                 **data))
val_dataloader = dict(
    num_workers=0, persistent_workers=False,
    dataset=dict(ann_file='val.json', data_prefix=dict(img='val/'), pipeline=test_pipeline,
                 **data))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file='{data}/val.json')
test_evaluator = val_evaluator

train_cfg = dict(max_epochs=2)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=4)]
randomness = dict(seed=0, deterministic=True)
env_cfg = dict(dist_cfg=dict(backend='gloo'))
default_hooks = dict(logger=dict(interval=2))
"""


def draw_split(folder: Path, split: str, pictures: int, seed: int) -> None:
    """Draw bright discs and boxes on dark noise, with exact polygons, in COCO format."""
    generator = np.random.default_rng(seed)
    (folder / split).mkdir(parents=True)
    images, annotations = [], []
    for image_id in range(1, pictures + 1):
        image = generator.integers(0, 40, (SIZE, SIZE, 3), dtype=np.uint8)
        for left in (4, 52):
            category = int(generator.integers(1, 3))
            radius = int(generator.integers(14, 20))
            x = left + 20
            y = int(generator.integers(24, 72))
            if category == 1:
                polygon = cv2.ellipse2Poly((x, y), (radius, radius), 0, 0, 360, 15)
            else:
                polygon = np.array(
                    [
                        [x - radius, y - radius],
                        [x + radius, y - radius],
                        [x + radius, y + radius],
                        [x - radius, y + radius],
                    ]
                )
            colour = (40, 200, 250) if category == 1 else (240, 120, 60)
            cv2.fillPoly(image, [polygon.astype(np.int32)], colour)
            (x1, y1), (x2, y2) = polygon.min(0), polygon.max(0)
            annotations.append(
                dict(
                    id=len(annotations) + 1,
                    image_id=image_id,
                    category_id=category,
                    iscrowd=0,
                    bbox=[int(x1), int(y1), int(x2 - x1), int(y2 - y1)],
                    area=float(cv2.contourArea(polygon.astype(np.int32))),
                    segmentation=[polygon.reshape(-1).tolist()],
                )
            )
        name = f'{image_id:03}.jpg'
        cv2.imwrite(str(folder / split / name), image)
        images.append(dict(id=image_id, file_name=name, height=SIZE, width=SIZE))
    content = dict(
        images=images,
        annotations=annotations,
        categories=[dict(id=1, name='disc'), dict(id=2, name='box')],
    )
    (folder / f'{split}.json').write_text(json.dumps(content), encoding='utf-8')


@pytest.fixture(scope='session')
def made_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('made_set')
    draw_split(folder, 'train', 16, seed=0)
    draw_split(folder, 'val', 4, seed=1)
    return folder


@pytest.fixture
def small_config(made_set: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes the small config, with more lines at its end, to a file."""

    def write(more: str = '', data: Path = made_set, name: str = 'small.py') -> Path:
        path = tmp_path / name
        base = ROOT / 'configs' / 'efficient_attention' / ROW
        path.write_text(
            SMALL_CONFIG.format(base=base, data=data, size=SIZE) + more, encoding='utf-8'
        )
        return path

    return write
