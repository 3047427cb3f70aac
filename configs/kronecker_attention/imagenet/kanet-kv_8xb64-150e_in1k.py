# KANet_KV (arXiv 2007.08442, tables 3 to 5) on ImageNet-1k: 150 epochs, batch 512 (8 GPUs, 64
# pictures each), SGD with momentum 0.9, learning rate 0.1 divided by 10 after epochs 80, 105 and
# 120, dropout with a keep rate of 0.8 after global pooling, Xavier initialisation. Pictures are
# scaled to 256 x 256 and cropped to 224 x 224, at random for training, in the middle for testing.
#
# Choices, because the paper does not say:
# - the order of modules: the paper's table 1 was not at hand, the default of KANet is reconstructed
#   (docs/kanet.md);
# - weight decay 4e-5 on all parameters, MobileNetV2's ("the same settings as MobileNetV2");
# - random mirroring, which belongs to the augmentation of He et al. 2016 that the paper refers to.
#   Its colour jitter is left out;
# - Xavier's uniform form; no label smoothing, no warm-up.
#
# Nothing is inherited from mmpretrain, so that it parses wherever mmpretrain is installed.
default_scope = 'mmpretrain'
custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)

# model
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='kronattn_mm.KANet',
        arch='kanet',
        attention=dict(
            type='kronattn_mm.KroneckerAttention2d',
            mode='kv',
            transforms='v',
            residual=False,
            coefficient_norm='batch_norm',
        ),
    ),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='kronattn_mm.DropoutLinearClsHead',
        num_classes=1000,
        in_channels=1280,
        dropout=0.2,
        topk=(1, 5),
    ),
)

# data
data_preprocessor = dict(
    num_classes=1000, mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(256, 256)),
    dict(type='RandomCrop', crop_size=224),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(256, 256)),
    dict(type='CenterCrop', crop_size=224),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=64,
    num_workers=5,
    persistent_workers=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='ImageNet', data_root='data/imagenet', split='train', pipeline=train_pipeline
    ),
)
val_dataloader = dict(
    batch_size=64,
    num_workers=5,
    persistent_workers=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='ImageNet', data_root='data/imagenet', split='val', pipeline=test_pipeline),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_evaluator = val_evaluator

# schedule
train_cfg = dict(by_epoch=True, max_epochs=150, val_interval=1)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=4e-5))
param_scheduler = [
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=150, milestones=[80, 105, 120], gamma=0.1)
]
# `--auto-scale-lr` scales the rate by (GPUs x pictures on each) / 512.
auto_scale_lr = dict(enable=False, base_batch_size=512)

# runtime
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=100),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=3, save_best='auto'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='VisualizationHook', enable=False),
)
custom_hooks = [dict(type='kronattn_mm.EpochSeed')]
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)
vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='UniversalVisualizer', vis_backends=vis_backends)
log_level = 'INFO'
load_from = None
resume = False
randomness = dict(seed=None, deterministic=False)
