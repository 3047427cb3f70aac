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
    visualization=dict(type='VisualizationHook', enable=False))
# The first makes resumed training equal to training that ran through; the second logs lambda and
# the saturation of the gates at each validation.
custom_hooks = [dict(type='kronattn_mm.EpochSeed'), dict(type='kronattn_mm.GateStatistics')]
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'))
vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='UniversalVisualizer', vis_backends=vis_backends)
log_level = 'INFO'
load_from = None
resume = False
randomness = dict(seed=None, deterministic=False)
