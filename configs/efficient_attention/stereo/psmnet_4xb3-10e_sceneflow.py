# Efficient attention (arXiv 1812.01243), table 7, PSMNet (original): batch 12, learning rate 1e-3,
# 10 epochs, as PSMNet (arXiv 1803.08669) was trained.
_base_ = './psmnet_8xb3-100e_sceneflow.py'

train_cfg = dict(max_epochs=10, val_interval=1)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
auto_scale_lr = dict(base_batch_size=12)
default_hooks = dict(checkpoint=dict(interval=1))
