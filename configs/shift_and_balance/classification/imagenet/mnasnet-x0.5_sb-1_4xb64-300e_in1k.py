# In no table of the paper.
_base_ = ['../_base_/imagenet_4xb64-300e.py', '../_base_/bottleneck/sb-1.py']

model = dict(
    backbone=dict(
        base='kronattn_mm.MnasNet', widen_factor=0.5, insert=_base_.insert, convs=_base_.convs
    )
)
