# Not in the paper: the insertion of its table 2, row res3-4+fpn1-5, in mmdet's Cascade Mask R-CNN,
# with mmdet's own data and schedule.
_base_ = 'mmdet::cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py'

custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
attention = dict(type='kronattn_mm.EfficientAttention2d', key_channels=64, value_channels=64)
model = dict(
    backbone=dict(
        type='kronattn_mm.Plugged', base='mmdet.ResNet', insert=[dict(at='res3-4', layer=attention)]
    ),
    neck=dict(
        type='kronattn_mm.Plugged', base='mmdet.FPN', insert=[dict(at='fpn1-5', layer=attention)]
    ),
)
