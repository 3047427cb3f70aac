# Not in the paper: efficient attention in a Mask R-CNN on mmpretrain's ConvNeXt-T, with mmdet's
# own data and schedule. Needs mmpretrain; mixed precision needs a GPU.
_base_ = 'mmdet::convnext/mask-rcnn_convnext-t-p4-w7_fpn_amp-ms-crop-3x_coco.py'

custom_imports = dict(imports=['kronattn_mm', 'mmpretrain.models'], allow_failed_imports=False)
attention = dict(type='kronattn_mm.EfficientAttention2d', key_channels=64, value_channels=64)
model = dict(
    backbone=dict(
        type='kronattn_mm.Plugged',
        base='mmpretrain.ConvNeXt',
        insert=[dict(at='out2-3', layer=attention)],
    ),
    neck=dict(
        type='kronattn_mm.Plugged', base='mmdet.FPN', insert=[dict(at='fpn1-5', layer=attention)]
    ),
)
