"""What `make quickstart` trains: efficient attention in the backbone and on every pyramid level.

The rows of the paper's Table 2 are named by where attention is inserted; this is its last,
res3-4+fpn1-5, on a small ResNet-18 and scenes of handwritten digits made by
tools/dataset_tools/make_digit_scenes.py.
"""

_base_ = ['./_base_/small_mask-rcnn.py', '../_base_/runtime.py']

attention = dict(type='kronattn_mm.EfficientAttention2d', key_channels=32, value_channels=32)
model = dict(
    backbone=dict(
        type='kronattn_mm.Plugged',
        base='mmdet.ResNet',
        insert=[dict(at='res3-4', layer=attention)],
        depth=18,
        base_channels=32,
        stem_channels=32,
        out_indices=(0, 1, 2, 3),
        style='pytorch',
    ),
    neck=dict(insert=[dict(at='fpn1-5', layer=attention)], in_channels=[32, 64, 128, 256]),
    # Digits are upright and 20 to 60 pixels high, so one anchor size a level does.
    rpn_head=dict(anchor_generator=dict(scales=[6], ratios=[0.7, 1.4, 2.5])),
)

# data
classes = ('0', '1', '2', '3', '4', '5', '6', '7', '8', '9')
data_root = 'data/digit_scenes/'
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(160, 160), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    batch_sampler=dict(type='AspectRatioBatchSampler'),
    dataset=dict(
        type='CocoDataset',
        data_root=data_root,
        ann_file='annotations/instances_train.json',
        data_prefix=dict(img='train/'),
        metainfo=dict(classes=classes),
        filter_cfg=dict(filter_empty_gt=True),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoDataset',
        data_root=data_root,
        ann_file='annotations/instances_val.json',
        data_prefix=dict(img='val/'),
        metainfo=dict(classes=classes),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(
    type='CocoMetric',
    ann_file=data_root + 'annotations/instances_val.json',
    metric=['bbox', 'segm'],
)
test_evaluator = val_evaluator

# schedule
epochs = 8
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=epochs, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.01),
    clip_grad=dict(max_norm=5),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.02, by_epoch=False, begin=0, end=60),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=0,
        end=epochs,
        T_max=epochs,
        eta_min_ratio=0.01,
        convert_to_iter_based=True,
    ),
]
randomness = dict(seed=0)

default_hooks = dict(
    logger=dict(type='LoggerHook', interval=5),
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=1),
)
log_processor = dict(type='LogProcessor', window_size=20, by_epoch=True)
vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='DetLocalVisualizer', vis_backends=vis_backends, name='visualizer')
