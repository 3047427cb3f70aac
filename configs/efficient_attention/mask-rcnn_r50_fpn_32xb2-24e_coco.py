# Efficient attention (arXiv 1812.01243), table 2, row "None"; table 3, the ResNet-50 baseline.
_base_ = [
    '../_base_/models/mask-rcnn_r50_fpn5.py',
    '../_base_/datasets/coco_instance_896x1280.py',
    '../_base_/schedules/adamw_32xb2-24e.py',
    '../_base_/runtime.py',
]
