# Efficient attention (arXiv 1812.01243), table 2, EA module, row res3-4+fpn1-5; table 3, ResNet-50.
_base_ = './mask-rcnn_r50_fpn_32xb2-24e_coco.py'

attention = dict(type='kronattn_mm.EfficientAttention2d', key_channels=64, value_channels=64)
model = dict(
    backbone=dict(
        type='kronattn_mm.Plugged', base='mmdet.ResNet', insert=[dict(at='res3-4', layer=attention)]
    ),
    neck=dict(
        type='kronattn_mm.Plugged', base='mmdet.FPN', insert=[dict(at='fpn1-5', layer=attention)]
    ),
)
