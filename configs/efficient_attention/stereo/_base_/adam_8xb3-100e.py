# Schedule of EA-PSMNet (arXiv 1812.01243, section 5.1): batch 24, learning rate 2e-3, 100 epochs,
# "the rest is the same as in" PSMNet: Adam with betas 0.9 and 0.999, the rate constant.
# Choice, because the paper does not say: 8 GPUs with three pairs each.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=100, val_interval=5)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='Adam', lr=2e-3, betas=(0.9, 0.999)))
param_scheduler = []
# `--auto-scale-lr` scales the rate by (GPUs x pairs on each) / 24.
auto_scale_lr = dict(enable=False, base_batch_size=24)
