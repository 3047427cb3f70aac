# A small set and a short schedule: SSD-MobileNetV2_x1.0 at 192 x 192 on about a hundred photographs
# with Pascal VOC's 20 classes in Pascal VOC's layout, from ImageNet weights, minutes on a CPU. The
# two coarsest levels, of one position each at this size, are left out.
_base_ = '../ssd_mobilenetv2-x1.0_1xb32-200e_voc0712.py'

size = 192
checkpoint = 'weights/mobilenet_v2_1.0_imagenet_mmdet.pth'
channels = (576, 1280, 512, 256)
model = dict(
    data_preprocessor=dict(mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5]),
    backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    neck=dict(extra_channels=channels[2:], expand_ratios=(0.2, 0.25)),
    bbox_head=dict(
        in_channels=channels,
        anchor_generator=dict(
            input_size=size,
            strides=[16, 32, 64, 96],
            ratios=[[2, 3]] * 4,
            min_sizes=[30, 66, 106, 146],
            max_sizes=[66, 106, 146, 186],
        ),
    ),
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='MinIoURandomCrop', min_ious=(0.1, 0.3, 0.5, 0.7, 0.9), min_crop_size=0.5),
    dict(type='Resize', scale=(size, size), keep_ratio=False),
    dict(type='RandomFlip', prob=0.5),
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
dataset = dict(
    type='VOCDataset', data_root='data/voc_mini/', data_prefix=dict(sub_data_root='VOC2007/')
)
train_dataloader = dict(
    batch_size=16,
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        _delete_=True,
        type='RepeatDataset',
        times=5,
        dataset=dict(
            ann_file='VOC2007/ImageSets/Main/trainval.txt', pipeline=train_pipeline, **dataset
        ),
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

epochs = 8
train_cfg = dict(max_epochs=epochs, val_interval=2)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-3, weight_decay=0.01),
    # What the weights know is moved slowly; the attention beside them is new.
    paramwise_cfg=dict(
        custom_keys={'backbone': dict(lr_mult=0.2), '.attention.': dict(lr_mult=1.0)}
    ),
    clip_grad=dict(max_norm=5),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.02, by_epoch=False, begin=0, end=30),
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
auto_scale_lr = dict(enable=False, base_batch_size=16)
randomness = dict(seed=0)
env_cfg = dict(cudnn_benchmark=False, dist_cfg=dict(backend='gloo'))
default_hooks = dict(
    logger=dict(interval=10), checkpoint=dict(interval=epochs, max_keep_ckpts=1, save_best=None)
)
