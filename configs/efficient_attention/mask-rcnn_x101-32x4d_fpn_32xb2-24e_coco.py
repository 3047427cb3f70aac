# Efficient attention (arXiv 1812.01243), table 3, the ResNeXt-101 (32x4d) baseline.
_base_ = './mask-rcnn_r50_fpn_32xb2-24e_coco.py'

model = dict(
    backbone=dict(
        type='ResNeXt',
        depth=101,
        groups=32,
        base_width=4,
        init_cfg=dict(type='Pretrained', checkpoint='open-mmlab://resnext101_32x4d'),
    )
)
