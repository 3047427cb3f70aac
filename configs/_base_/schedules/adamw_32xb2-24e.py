# Schedule of the efficient-attention paper (arXiv 1812.01243, section 4): 24 epochs, batch 64
# (32 GPUs, two pictures each), learning rate 1.25e-4, divided by 10 "at the start of the 18th and
# 21st epochs".
#
# Choices, because the paper does not say:
# - the optimizer. 1.25e-4 for a batch of 64 is a usual rate for Adam; by the usual linear rule SGD
#   would take 0.08. AdamW with weight decay 0.05 is what mmdet's own AdamW configs use;
# - no decay of norms and biases. It is set by kind of parameter; a `custom_keys` entry would switch
#   this off again for everything it matches, unless it sets `decay_mult` too;
# - 500 iterations of warm-up, and clipping of the gradient's norm at 35. A new AdamW has no
#   estimate of the second moments, and attention layers have no norms inside.
max_epochs = 24
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1.25e-4, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
    clip_grad=dict(max_norm=35, norm_type=2),
)

param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    # A milestone m drops the rate when m epochs are done. Epochs counted from 0, as programs count
    # them, the 18th starts after 18 epochs; counted from 1, it would be milestones=[17, 20].
    dict(
        type='MultiStepLR', by_epoch=True, begin=0, end=max_epochs, milestones=[18, 21], gamma=0.1
    ),
]

# `--auto-scale-lr` scales the rate by (GPUs x pictures on each) / 64.
auto_scale_lr = dict(enable=False, base_batch_size=64)
