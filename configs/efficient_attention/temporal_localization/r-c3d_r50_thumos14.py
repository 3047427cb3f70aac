# R-C3D with a ResNet-50 on THUMOS14: the baseline of table 6.
#
# The paper states no schedule. Ours: SGD as R-C3D trains (1e-4, momentum 0.9, decay 5e-4), 8 epochs
# with a drop after 6, batch 4 (four GPUs); start from weights of Kinetics or ImageNet, as
# the README shows.
_base_ = ['_base_/r-c3d_r50.py', '_base_/thumos14.py', '_base_/runtime.py']

train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=8, val_interval=2)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=1e-4, momentum=0.9, weight_decay=5e-4),
    clip_grad=dict(max_norm=35),
)
param_scheduler = [dict(type='MultiStepLR', begin=0, end=8, milestones=[6], gamma=0.1)]
auto_scale_lr = dict(enable=False, base_batch_size=4)
