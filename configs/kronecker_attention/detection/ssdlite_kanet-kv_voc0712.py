# SSDLite with KANet_KV (arXiv 2007.08442) on Pascal VOC 2007 + 2012. Not in the paper. Levels and
# head are those of mmdet's SSDLite on COCO, data and augmentation those of its SSD on VOC, at
# 320 x 320. mmdet has no SSDLite on VOC, so the schedule is a choice: SGD with learning rate 0.01
# for a batch of 32, cosine, 24 passes over the set that is repeated 10 times.
#
# No weights of KANet have been published; `checkpoint` is what the classification config trains.
# `--cfg-options model.backbone.init_cfg=None` starts from Xavier initialisation.
_base_ = ['../../_base_/datasets/voc0712.py', 'mmdet::_base_/default_runtime.py']

custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
checkpoint = 'work_dirs/kanet-kv_8xb64-150e_in1k/epoch_150.pth'
input_size = 320
norm = dict(type='BN', eps=0.001, momentum=0.03)
channels = (96, 1280, 512, 256, 256, 128)
model = dict(
    type='SingleStageDetector',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=1,
    ),
    backbone=dict(
        type='kronattn_mm.KANet',
        attention=dict(
            type='kronattn_mm.KroneckerAttention2d',
            mode='kv',
            transforms='v',
            residual=False,
            coefficient_norm='batch_norm',
        ),
        out_indices=(4, 7),
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint, prefix='backbone.'),
    ),
    neck=dict(
        type='SSDNeck',
        in_channels=channels[:2],
        out_channels=channels,
        level_strides=(2, 2, 2, 2),
        level_paddings=(1, 1, 1, 1),
        l2_norm_scale=None,
        use_depthwise=True,
        norm_cfg=norm,
        act_cfg=dict(type='ReLU6'),
        init_cfg=dict(type='TruncNormal', layer='Conv2d', std=0.03),
    ),
    bbox_head=dict(
        type='kronattn_mm.SSDHead',  # mmdet's stops at its first evaluation
        in_channels=channels,
        num_classes=20,
        use_depthwise=True,
        norm_cfg=norm,
        act_cfg=dict(type='ReLU6'),
        init_cfg=dict(type='Normal', layer='Conv2d', std=0.001),
        anchor_generator=dict(
            type='SSDAnchorGenerator',
            scale_major=False,
            strides=[16, 32, 64, 107, 160, 320],
            ratios=[[2, 3], [2, 3], [2, 3], [2, 3], [2, 3], [2, 3]],
            min_sizes=[48, 100, 150, 202, 253, 304],
            max_sizes=[100, 150, 202, 253, 304, 320],
        ),
        bbox_coder=dict(
            type='DeltaXYWHBBoxCoder',
            target_means=[0.0, 0.0, 0.0, 0.0],
            target_stds=[0.1, 0.1, 0.2, 0.2],
        ),
    ),
    train_cfg=dict(
        assigner=dict(
            type='MaxIoUAssigner',
            pos_iou_thr=0.5,
            neg_iou_thr=0.5,
            min_pos_iou=0.0,
            ignore_iof_thr=-1,
            gt_max_assign_all=False,
        ),
        sampler=dict(type='PseudoSampler'),
        smoothl1_beta=1.0,
        allowed_border=-1,
        pos_weight=-1,
        neg_pos_ratio=3,
        debug=False,
    ),
    test_cfg=dict(
        nms_pre=1000,
        nms=dict(type='nms', iou_threshold=0.45),
        min_bbox_size=0,
        score_thr=0.02,
        max_per_img=200,
    ),
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Expand', mean=model['data_preprocessor']['mean'], to_rgb=True, ratio_range=(1, 4)),
    dict(type='MinIoURandomCrop', min_ious=(0.1, 0.3, 0.5, 0.7, 0.9), min_crop_size=0.3),
    dict(type='Resize', scale=(input_size, input_size), keep_ratio=False),
    dict(type='RandomFlip', prob=0.5),
    dict(
        type='PhotoMetricDistortion',
        brightness_delta=32,
        contrast_range=(0.5, 1.5),
        saturation_range=(0.5, 1.5),
        hue_delta=18,
    ),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(input_size, input_size), keep_ratio=False),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
voc = dict(
    type='VOCDataset',
    data_root={{_base_.data_root}},
    pipeline=train_pipeline,
    filter_cfg=dict(filter_empty_gt=True, min_size=32),
)
train_dataloader = dict(
    batch_size=32,
    num_workers=4,
    batch_sampler=None,
    dataset=dict(
        times=10,
        dataset=dict(
            datasets=[
                dict(
                    ann_file='VOC2007/ImageSets/Main/trainval.txt',
                    data_prefix=dict(sub_data_root='VOC2007/'),
                    **voc,
                ),
                dict(
                    ann_file='VOC2012/ImageSets/Main/trainval.txt',
                    data_prefix=dict(sub_data_root='VOC2012/'),
                    **voc,
                ),
            ]
        ),
    ),
)
val_dataloader = dict(batch_size=8, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

epochs = 24
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=epochs, val_interval=2)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=4e-5)
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='CosineAnnealingLR', by_epoch=True, begin=0, end=epochs, T_max=epochs, eta_min=0),
]
auto_scale_lr = dict(enable=False, base_batch_size=32)
