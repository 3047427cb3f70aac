# SSD-MobileNetV2_x0.75 with scaled attention (SE) in the 50 convolutions of the bottlenecks.
_base_ = './ssd_mobilenetv2-x0.75_1xb32-200e_voc0712.py'

model = dict(
    backbone=dict(convs=[dict(at='layer*', layer=dict(type='kronattn_mm.SqueezeExciteConv2d'))])
)
