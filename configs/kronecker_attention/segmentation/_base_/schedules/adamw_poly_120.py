# A training of minutes on a CPU: 120 iterations, evaluated once at the end.
max_iters = 120
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-3, weight_decay=0.01),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        custom_keys=dict(backbone=dict(lr_mult=0.1, decay_mult=1.0)),
    ),
    clip_grad=dict(max_norm=5, norm_type=2),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, begin=0, end=10, by_epoch=False),
    dict(type='PolyLR', power=0.9, eta_min=0.0, begin=10, end=max_iters, by_epoch=False),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
randomness = dict(seed=0)
