# Schedule of "Kronecker Attention Networks" (arXiv 2007.08442), section 4.1: 25,000 iterations of 8
# crops, SGD with momentum 0.9, weight decay 5e-4, learning rate 2.5e-4 with the poly policy 0.9.
#
# The paper follows DeepLabV2, whose rates are those of the encoder: ten times as much for weights
# of the output layer, twenty times for its biases.
#
# mmengine takes the longest of the `custom_keys` that occurs in a parameter's name, and a parameter
# found this way is exempt from the rules for norms and biases. So every key says its decay too, and
# biases have to be named in full to come before 'decode_head'. Keys of the other output layers find
# nothing. No decay of biases and norms is our choice; the paper does not say.
base_lr = 2.5e-4
max_iters = 25000
_weights = dict(lr_mult=10.0, decay_mult=1.0)
_norms = dict(lr_mult=10.0, decay_mult=0.0)
_biases = dict(lr_mult=20.0, decay_mult=0.0)
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=base_lr, momentum=0.9, weight_decay=5e-4),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        custom_keys={
            'decode_head': _weights,
            'decode_head.bottleneck.bn.weight': _norms,
            'decode_head.bottleneck.bn.bias': _biases,
            'decode_head.attention.queries.bias': _biases,
            'decode_head.attention.keys.bias': _biases,
            'decode_head.attention.values.bias': _biases,
            'decode_head.attention.reprojection.bias': _biases,
            'decode_head.conv_seg.bias': _biases,
            'decode_head.classifiers.0.bias': _biases,
            'decode_head.classifiers.1.bias': _biases,
            'decode_head.classifiers.2.bias': _biases,
            'decode_head.classifiers.3.bias': _biases,
        },
    ),
)
param_scheduler = [
    dict(type='PolyLR', power=0.9, eta_min=0.0, begin=0, end=max_iters, by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=2500)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
