# DeepLabV2 with ASPP as its output layer on CamVid, small enough for a CPU.
_base_ = [
    './_base_/models/deeplabv2_mobilenet-v2-d16_aspp.py',
    './_base_/datasets/camvid_161x161.py',
    './_base_/schedules/adamw_poly_120.py',
    './_base_/runtime.py',
]
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval={{_base_.max_iters}}))
model = dict(decode_head=dict(num_classes=11))
