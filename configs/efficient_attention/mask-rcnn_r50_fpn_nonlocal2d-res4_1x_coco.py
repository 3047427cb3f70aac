# Somebody else's layer at a point of the paper: mmcv's NonLocal2d (softmax of scaled products)
# after res4, in mmdet's Mask R-CNN with mmdet's own data and schedule.
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'

custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
attention = dict(type='NonLocal2d', reduction=2, mode='embedded_gaussian')
model = dict(
    backbone=dict(
        type='kronattn_mm.Plugged', base='mmdet.ResNet', insert=[dict(at='res4', layer=attention)]
    )
)
