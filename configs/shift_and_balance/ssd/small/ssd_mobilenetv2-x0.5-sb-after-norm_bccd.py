# The same with the sum of trunk and branch after the norm, where the trunk's scale is known;
# mmdet's initialisation makes the outputs of depthwise convolutions smaller than the shift
# (docs/shift_and_balance_ssd.md).
_base_ = './ssd_mobilenetv2-x0.5_bccd.py'

model = dict(
    backbone=dict(
        convs=[
            dict(at='layer*', layer=dict(type='kronattn_mm.ShiftBalanceConv2d', place='after_norm'))
        ]
    )
)
