# A small set, a small picture and a short schedule: SSDLite with KANet_KV on the blood cells of
# BCCD (Pascal VOC layout, 3 classes), minutes on a CPU. The pictures are squeezed to 192 x 192.
# Platelets are then 10 to 20 pixels wide, so a level of stride 8 is added to mmdet's geometry, and
# the coarsest three are left out.
#
# Start from weights, or unfreeze the first stages; docs/kanet.md says how the checkpoint is made
# and what was measured.
_base_ = '../detection/ssdlite_kanet-kv-scratch_8xb24-600e_coco.py'

classes = ('RBC', 'WBC', 'Platelets')
size = 192
model = dict(
    data_preprocessor=dict(mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5]),
    backbone=dict(out_indices=(2, 4, 7), frozen_stages=2),
    neck=dict(
        in_channels=(32, 96, 1280),
        out_channels=(32, 96, 1280, 128),
        level_strides=(2,),
        level_paddings=(1,),
    ),
    bbox_head=dict(
        in_channels=(32, 96, 1280, 128),
        num_classes=3,
        anchor_generator=dict(
            strides=[8, 16, 32, 64],
            ratios=[[2], [2], [2], [2]],
            min_sizes=[12, 32, 54, 90],
            max_sizes=[22, 44, 90, 140],
        ),
    ),
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='MinIoURandomCrop', min_ious=(0.3, 0.5, 0.7, 0.9), min_crop_size=0.5),
    dict(type='Resize', scale=(size, size), keep_ratio=False),
    dict(type='RandomFlip', prob=[0.3, 0.3], direction=['horizontal', 'vertical']),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(size, size), keep_ratio=False),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
data_root = 'data/bccd/'
dataset = dict(
    # Not VOCDataset: for a folder called VOC2007 its metric prints VOC's own class names.
    type='XMLDataset',
    data_root=data_root,
    data_prefix=dict(sub_data_root='VOC2007/'),
    metainfo=dict(classes=classes, palette=[(220, 60, 60), (60, 90, 220), (40, 160, 60)]),
)
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        _delete_=True,
        ann_file='VOC2007/ImageSets/Main/trainval.txt',
        filter_cfg=dict(filter_empty_gt=True),
        pipeline=train_pipeline,
        **dataset,
    ),
)
val_dataloader = dict(
    batch_size=16,
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        _delete_=True,
        ann_file='VOC2007/ImageSets/Main/test.txt',
        test_mode=True,
        pipeline=test_pipeline,
        **dataset,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(_delete_=True, type='VOCMetric', metric='mAP', eval_mode='11points')
test_evaluator = val_evaluator

epochs = 10
train_cfg = dict(max_epochs=epochs, val_interval=5)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-3, weight_decay=0.01),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
    clip_grad=dict(max_norm=5),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.02, by_epoch=False, begin=0, end=40),
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
auto_scale_lr = dict(enable=False, base_batch_size=8)
randomness = dict(seed=0)
env_cfg = dict(cudnn_benchmark=False, dist_cfg=dict(backend='gloo'))
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=6),
    checkpoint=dict(type='CheckpointHook', interval=epochs, max_keep_ckpts=1),
)
custom_hooks = [
    dict(type='NumClassCheckHook'),
    dict(type='CheckInvalidLossHook', interval=20),
    dict(type='kronattn_mm.EpochSeed'),
    dict(type='kronattn_mm.ValidationPictures', number=2),
]
