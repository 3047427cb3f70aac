# Somebody else's layer at points of the paper: mmcv's ContextBlock (GCNet) after res2, res3 and
# res4, in mmdet's Mask R-CNN with mmdet's own data and schedule.
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'

custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
attention = dict(type='ContextBlock', ratio=1 / 16)
model = dict(
    backbone=dict(
        type='kronattn_mm.Plugged', base='mmdet.ResNet', insert=[dict(at='res2-4', layer=attention)]
    )
)
