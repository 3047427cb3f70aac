# The same with Shift-and-Balance in the 50 convolutions of the bottlenecks.
_base_ = './ssd_mobilenetv2-x0.5_bccd.py'

model = dict(
    backbone=dict(convs=[dict(at='layer*', layer=dict(type='kronattn_mm.ShiftBalanceConv2d'))])
)
