# MobileNetV2, the baseline of arXiv 2007.08442, under the same schedule.
_base_ = './kanet-kv_8xb64-150e_in1k.py'

model = dict(backbone=dict(arch='mobilenetv2'))
