# DeepLabV2 with KAO_QKV as its output layer on a set in VOC's layout, small enough for a CPU.
_base_ = [
    './_base_/models/deeplabv2_mobilenet-v2-d16_kao-qkv.py',
    './_base_/datasets/voc_161x161.py',
    './_base_/schedules/adamw_poly_120.py',
    './_base_/runtime.py',
]
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval={{_base_.max_iters}}))
