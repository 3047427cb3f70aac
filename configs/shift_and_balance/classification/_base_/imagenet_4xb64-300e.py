# The paper's section 5.1, which is PyTorch's example with another weight decay and schedule: crops
# of 0.08 to 1.0 of the area and 3/4 to 4/3 in shape, mirroring; tests on the central 224 x 224
# pixels of a picture resized to 256 x 256 (as the paper says; PyTorch's example resizes the shorter
# side). Batch 256 on four GPUs, 300 epochs, learning rate from 0.1 to 0 along a line.
_base_ = './runtime.py'

model = dict(
    type='ImageClassifier',
    backbone=dict(type='kronattn_mm.Plugged'),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='kronattn_mm.DropoutLinearClsHead',
        num_classes=1000,
        in_channels=1280,
        dropout=0.2,
        topk=(1, 5),
    ),
)

data_preprocessor = dict(
    num_classes=1000, mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='RandomResizedCrop',
        scale=224,
        crop_ratio_range=(0.08, 1.0),
        aspect_ratio_range=(3.0 / 4.0, 4.0 / 3.0),
    ),
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

train_cfg = dict(max_epochs=300)
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=4e-5))
param_scheduler = [dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=True, begin=0, end=300)]
# `--auto-scale-lr` scales the rate by (GPUs x pictures on each) / 256.
auto_scale_lr = dict(enable=False, base_batch_size=256)
