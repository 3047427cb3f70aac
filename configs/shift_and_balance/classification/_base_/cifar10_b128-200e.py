# The paper's section 5.3, which is pytorch-cifar with less padding: pictures padded to 36 x 36 and
# cropped to 32 x 32, mirroring; batch 128, 200 epochs, learning rate from 0.1 to 0 along a cosine.
# The paper repeats each run with five seeds (`--cfg-options randomness.seed=0`, ...).
_base_ = './runtime.py'

# The dropout before the classifier is the ImageNet network's; pytorch-cifar has none.
model = dict(
    type='ImageClassifier',
    backbone=dict(type='kronattn_mm.Plugged'),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=1280,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0),
        topk=(1,),
    ),
)

data_preprocessor = dict(
    num_classes=10,
    # Of the training set.
    mean=[125.307, 122.961, 113.8575],
    std=[51.5865, 50.847, 51.255],
    to_rgb=False,
)
train_pipeline = [
    dict(type='RandomCrop', crop_size=32, padding=2),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [dict(type='PackInputs')]
train_dataloader = dict(
    batch_size=128,
    num_workers=2,
    persistent_workers=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(type='CIFAR10', data_root='data/cifar10', split='train', pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=250,
    num_workers=2,
    persistent_workers=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='CIFAR10', data_root='data/cifar10', split='test', pipeline=test_pipeline),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1,))
test_evaluator = val_evaluator

train_cfg = dict(max_epochs=200)
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=5e-4))
param_scheduler = [
    dict(type='CosineAnnealingLR', by_epoch=True, begin=0, end=200, T_max=200, eta_min=0.0)
]
auto_scale_lr = dict(enable=False, base_batch_size=128)
