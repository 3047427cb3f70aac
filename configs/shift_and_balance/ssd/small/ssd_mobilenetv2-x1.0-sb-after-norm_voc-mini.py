# The same with the sum of trunk and branch after the norm (docs/shift_and_balance_ssd.md).
_base_ = './ssd_mobilenetv2-x1.0_voc-mini.py'

model = dict(
    backbone=dict(
        convs=[
            dict(at='layer*', layer=dict(type='kronattn_mm.ShiftBalanceConv2d', place='after_norm'))
        ]
    )
)
