# Table 5.
# Other widths: --cfg-options model.backbone.widen_factor=0.35
_base_ = ['../_base_/cifar10_b128-200e.py', '../_base_/bottleneck/se-2.py']

model = dict(
    backbone=dict(
        base='kronattn_mm.CIFARMobileNetV2',
        widen_factor=1.0,
        insert=_base_.insert,
        convs=_base_.convs,
    )
)
