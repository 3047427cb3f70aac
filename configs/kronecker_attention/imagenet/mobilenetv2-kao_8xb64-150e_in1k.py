# MobileNetV2+KAO (arXiv 2007.08442, table 5): MobileNetV2 whose BaseModules are AttnModules with
# KAO_KV where KANet attends.
_base_ = './kanet-kv_8xb64-150e_in1k.py'

model = dict(backbone=dict(arch='mobilenetv2_kao'))
