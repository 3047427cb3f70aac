# What all of these configs run with. Nothing is inherited from mmpretrain, so that they parse
# wherever it is installed.
default_scope = 'mmpretrain'
custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)

train_cfg = dict(by_epoch=True, val_interval=1)
val_cfg = dict()
test_cfg = dict()
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=100),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=2),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='VisualizationHook', enable=False),
)
custom_hooks = [
    # Resumed training is equal to training that ran through.
    dict(type='kronattn_mm.EpochSeed'),
    # Lambda and the saturation of the gates at each validation.
    dict(type='kronattn_mm.GateStatistics'),
    # Says at the start what is inserted where, what it costs, and what of it is trained.
    dict(type='kronattn_mm.AttentionStatusHook'),
]
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
