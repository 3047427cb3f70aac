# The same network of MobileNetV2's modules only, for comparison.
_base_ = './kanet-kv_cifar10.py'

model = dict(
    backbone=dict(
        arch=[
            (1, 16, 1, ('base',)),
            (4, 24, 1, ('base', 'base')),
            (4, 48, 2, ('base', 'base')),
            (4, 96, 2, ('base', 'base')),
        ]
    )
)
