# Table 1.
_base_ = ['../_base_/imagenet_4xb64-300e.py', '../_base_/bottleneck/se-block.py']

model = dict(
    backbone=dict(
        base='mmpretrain.MobileNetV2', widen_factor=1.0, insert=_base_.insert, convs=_base_.convs
    )
)
