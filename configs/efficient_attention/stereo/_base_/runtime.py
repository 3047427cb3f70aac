# The runtime of all trainings here, and pictures of disparities.
_base_ = '../../../_base_/runtime.py'

custom_hooks = [
    # Says at the start what is inserted where, what it costs, and what of it is trained.
    dict(type='kronattn_mm.AttentionStatusHook', image_shape=(540, 960)),
    dict(type='CheckInvalidLossHook', interval=50),
    dict(type='kronattn_mm.EpochSeed'),
    # Four pairs with truth, estimate and error at each validation.
    dict(type='kronattn_mm.ValidationPictures', number=4),
]
visualizer = dict(
    _delete_=True,
    type='kronattn_mm.DisparityVisualizer',
    vis_backends=[dict(type='LocalVisBackend')],
)
default_hooks = dict(
    checkpoint=dict(interval=5, max_keep_ckpts=3, save_best='disparity/EPE', rule='less')
)
