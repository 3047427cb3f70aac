# SSD-MobileNetV2_x0.5, static: the baseline.
_base_ = './_base_/ssd_mobilenetv2_voc0712.py'

channels = (288, 1280, 512, 256, 256, 64)
model = dict(
    backbone=dict(widen_factor=0.5),
    neck=dict(in_channels=channels[:2]),
    bbox_head=dict(in_channels=channels),
)
