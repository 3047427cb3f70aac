# Not in the paper: efficient attention in a Mask R-CNN on Swin-T, with mmdet's own data and
# schedule. out2 and out3 are what the third and fourth stage hand to the pyramid; stages inside
# the backbone pass tokens on, so the layers act on the pyramid only.
_base_ = 'mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py'

custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
attention = dict(type='kronattn_mm.EfficientAttention2d', key_channels=64, value_channels=64)
model = dict(
    backbone=dict(
        type='kronattn_mm.Plugged',
        base='mmdet.SwinTransformer',
        insert=[dict(at='out2-3', layer=attention)],
    ),
    neck=dict(
        type='kronattn_mm.Plugged', base='mmdet.FPN', insert=[dict(at='fpn1-5', layer=attention)]
    ),
)
