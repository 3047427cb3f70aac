# DeepLabV2 with regular attention as its output layer on a set in VOC's layout, for a CPU.
_base_ = [
    './_base_/models/deeplabv2_mobilenet-v2-d16_regular.py',
    './_base_/datasets/voc_161x161.py',
    './_base_/schedules/adamw_poly_120.py',
    './_base_/runtime.py',
]
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval={{_base_.max_iters}}))
