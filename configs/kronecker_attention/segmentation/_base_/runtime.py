# What mmseg's default_runtime.py says. It is not inherited from there because the forks of the
# OpenMMLab libraries cannot resolve `mmseg::` bases.
default_scope = 'mmseg'
custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)

env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)
vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='SegLocalVisualizer', vis_backends=vis_backends, name='visualizer')
log_processor = dict(by_epoch=False)
log_level = 'INFO'
load_from = None
resume = False

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=2500, max_keep_ckpts=2),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='SegVisualizationHook'),
)
custom_hooks = [
    # Says at the start what is inserted where, what it costs, and what of it is trained.
    dict(type='kronattn_mm.AttentionStatusHook'),
    # Four pictures at each validation, in <work dir>/<time stamp>/vis_data/vis_image.
    dict(type='kronattn_mm.ValidationPictures', number=4),
]
