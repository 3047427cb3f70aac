# Efficient attention (arXiv 1812.01243), table 2, EA module, row fpn3.
_base_ = './mask-rcnn_r50_fpn_32xb2-24e_coco.py'

attention = dict(type='kronattn_mm.EfficientAttention2d', key_channels=64, value_channels=64)
model = dict(
    neck=dict(
        type='kronattn_mm.Plugged', base='mmdet.FPN', insert=[dict(at='fpn3', layer=attention)]
    )
)
