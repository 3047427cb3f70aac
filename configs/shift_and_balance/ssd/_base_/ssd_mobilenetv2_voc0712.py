# SSD-MobileNetV2 on Pascal VOC, section 5.2 of "Shift-and-Balance Attention" (arXiv 2103.13080)
# and the code that it builds on, github.com/qfgaohao/pytorch-ssd (MobileNetV2-SSD-Lite). README.md
# in the folder above says what is not the same.
#
# The paper does not say what its backbones start from; pytorch-ssd starts from ImageNet weights.
# Here they start from nothing until a checkpoint is given (README.md, "Weights").
_base_ = ['../../../_base_/datasets/voc0712.py', 'mmdet::_base_/default_runtime.py']

custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
input_size = 300
mean = [127.0, 127.0, 127.0]
channels = (576, 1280, 512, 256, 256, 64)  # at width 1; maps of 19, 10, 5, 3, 2 and 1
model = dict(
    type='SingleStageDetector',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=mean,
        std=[128.0, 128.0, 128.0],
        bgr_to_rgb=True,
        pad_size_divisor=1,
    ),
    backbone=dict(
        type='kronattn_mm.Plugged',
        base='kronattn_mm.ExpansionMobileNetV2',
        expansion_indices=(5,),  # the expansion of layer6's first block, at stride 16
        out_indices=(7,),
    ),  # conv2, at stride 32
    neck=dict(
        type='kronattn_mm.SSDLiteNeck',
        in_channels=channels[:2],
        extra_channels=channels[2:],
        expand_ratios=(0.2, 0.25, 0.5, 0.25),
    ),
    bbox_head=dict(
        type='kronattn_mm.SSDLiteHead',
        in_channels=channels,
        num_classes=20,
        use_depthwise=True,
        norm_cfg=dict(type='BN'),
        act_cfg=dict(type='ReLU6'),
        anchor_generator=dict(  # 6 x (361 + 100 + 25 + 9 + 4 + 1) = 3000 priors
            type='kronattn_mm.ClippedSSDAnchorGenerator',
            input_size=input_size,
            strides=[16, 32, 64, 100, 150, 300],
            ratios=[[2, 3]] * 6,
            min_sizes=[60, 105, 150, 195, 240, 285],
            max_sizes=[105, 150, 195, 240, 285, 330],
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
            min_pos_iou=0.0,  # the best prior of every object, however little it overlaps
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
        score_thr=0.01,
        max_per_img=200,
    ),
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(
        type='PhotoMetricDistortion',
        brightness_delta=32,
        contrast_range=(0.5, 1.5),
        saturation_range=(0.5, 1.5),
        hue_delta=18,
    ),
    dict(type='Expand', mean=mean, to_rgb=True, ratio_range=(1, 4), prob=0.5),
    dict(type='MinIoURandomCrop', min_ious=(0.1, 0.3, 0.7, 0.9), min_crop_size=0.3),
    dict(type='RandomFlip', prob=0.5),
    dict(type='Resize', scale=(input_size, input_size), keep_ratio=False),
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
voc = dict(type='VOCDataset', data_root={{_base_.data_root}}, pipeline=train_pipeline)
train_dataloader = dict(
    batch_size=32,
    num_workers=4,
    batch_sampler=None,
    dataset=dict(
        _delete_=True,
        type='ConcatDataset',
        ignore_keys=['dataset_type'],  # 'VOC2007' and 'VOC2012'
        datasets=[
            dict(
                ann_file=f'{year}/ImageSets/Main/trainval.txt',
                data_prefix=dict(sub_data_root=f'{year}/'),
                **voc,
            )
            for year in ('VOC2007', 'VOC2012')
        ],
    ),
)
val_dataloader = dict(batch_size=32, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

epochs = 200
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=epochs, val_interval=10)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=4e-5)
)
param_scheduler = [
    dict(type='CosineAnnealingLR', by_epoch=True, begin=0, end=epochs, T_max=epochs, eta_min=0)
]
auto_scale_lr = dict(enable=False, base_batch_size=32)
default_hooks = dict(checkpoint=dict(interval=10, max_keep_ckpts=2, save_best='auto'))
custom_hooks = [
    # Says at the start what is inserted where, what it costs, and what of it is trained.
    dict(type='kronattn_mm.AttentionStatusHook'),
    dict(type='NumClassCheckHook'),
    dict(type='CheckInvalidLossHook', interval=50),
    dict(type='kronattn_mm.EpochSeed'),
]
