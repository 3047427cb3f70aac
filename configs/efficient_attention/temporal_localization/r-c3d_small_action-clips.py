# A small R-C3D on clips with known actions, without attention, minutes on a CPU.
_base_ = ['_base_/r-c3d_small.py', '_base_/action_clips.py', '_base_/runtime.py']

epochs = 12
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=epochs, val_interval=6)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=3e-3, weight_decay=0.01),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
    clip_grad=dict(max_norm=10),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=60),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=0,
        end=epochs,
        T_max=epochs,
        eta_min_ratio=0.02,
        convert_to_iter_based=True,
    ),
]
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=20),
    checkpoint=dict(type='CheckpointHook', interval=3, max_keep_ckpts=1),
)
env_cfg = dict(dist_cfg=dict(backend='gloo'))
randomness = dict(seed=0)
