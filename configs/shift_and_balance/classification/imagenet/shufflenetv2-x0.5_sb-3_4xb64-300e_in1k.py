# Table 3.
_base_ = ['../_base_/imagenet_4xb64-300e.py', '../_base_/shufflenetv2/sb-3.py']

model = dict(
    backbone=dict(
        base='mmpretrain.ShuffleNetV2',
        widen_factor=0.5,
        out_indices=(3,),
        insert=_base_.insert,
        convs=_base_.convs,
    ),
    head=dict(in_channels=1024),
)
