# SSD-MobileNetV2_x1.0, static: the baseline.
_base_ = './_base_/ssd_mobilenetv2_voc0712.py'
