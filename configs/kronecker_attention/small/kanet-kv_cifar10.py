# A small KANet_KV on CIFAR-10 pictures (32 x 32), minutes on a CPU. The table has the paper's
# modules in the order of the reconstructed KANet, but fewer of them, and its strides leave maps of
# 16 x 16, 8 x 8 and 4 x 4; attention is on all of them.
#
# tools/dataset_tools/unpack_image_archive.py makes the folders; docs/kanet.md says what was
# measured.
_base_ = '../imagenet/kanet-kv_8xb64-150e_in1k.py'

model = dict(
    backbone=dict(
        arch=[
            (1, 16, 1, ('base',)),
            (4, 24, 1, ('base_skip', 'attn_skip')),
            (4, 48, 2, ('base_skip', 'attn_skip')),
            (4, 96, 2, ('base_skip', 'attn_skip')),
        ]
    ),
    head=dict(num_classes=10, topk=(1,)),
)
data_preprocessor = dict(num_classes=10, mean=[127.5, 127.5, 127.5], std=[64.0, 64.0, 64.0])

classes = ('airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck')
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomCrop', crop_size=32, padding=4),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
dataset = dict(type='CustomDataset', data_root='data/cifar10', metainfo=dict(classes=classes))
train_dataloader = dict(
    batch_size=128,
    num_workers=0,
    persistent_workers=False,
    dataset=dict(_delete_=True, data_prefix='train', pipeline=train_pipeline, **dataset),
)
val_dataloader = dict(
    batch_size=250,
    num_workers=0,
    persistent_workers=False,
    dataset=dict(_delete_=True, data_prefix='test', pipeline=test_pipeline, **dataset),
)
test_dataloader = val_dataloader
val_evaluator = dict(topk=(1,))
test_evaluator = val_evaluator

epochs = 8
train_cfg = dict(max_epochs=epochs, val_interval=2)
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='AdamW', lr=4e-3, weight_decay=0.02),
    clip_grad=dict(max_norm=5),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.05, by_epoch=False, begin=0, end=80),
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
auto_scale_lr = dict(base_batch_size=128)
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=epochs, max_keep_ckpts=1))
env_cfg = dict(cudnn_benchmark=False, dist_cfg=dict(backend='gloo'))
randomness = dict(seed=0)
