# The runner's defaults. `default_scope` only says whose train.py tools/train.py runs: mmdet's,
# which is mmengine's runner and nothing else. No part of these models is mmdet's.
default_scope = 'mmdet'
custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=1),
    sampler_seed=dict(type='DistSamplerSeedHook'),
)
custom_hooks = [
    dict(type='CheckInvalidLossHook', interval=50),
    dict(type='kronattn_mm.EpochSeed'),
    dict(type='kronattn_mm.TimelinePictures', number=4),
]
env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)
visualizer = dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer')
log_processor = dict(type='LogProcessor', window_size=50, by_epoch=True)
log_level = 'INFO'
load_from = None
resume = False
