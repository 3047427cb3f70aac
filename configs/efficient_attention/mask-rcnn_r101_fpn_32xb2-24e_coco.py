# Efficient attention (arXiv 1812.01243), table 3, the ResNet-101 baseline.
_base_ = './mask-rcnn_r50_fpn_32xb2-24e_coco.py'

model = dict(
    backbone=dict(depth=101, init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet101'))
)
