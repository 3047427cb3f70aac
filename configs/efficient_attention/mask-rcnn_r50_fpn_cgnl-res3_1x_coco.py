# Efficient attention (arXiv 1812.01243), table 3, row CGNL.
# That paper quotes CGNL's own result, so this has the place of its authors' code, before the last
# block of res3, and 8 groups, in mmdet's Mask R-CNN with mmdet's schedule. What table 3 counted
# fits another place better; see docs/cost.md.
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'

custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
attention = dict(type='kronattn_mm.CGNL2d', groups=8)
model = dict(
    backbone=dict(
        type='kronattn_mm.Plugged',
        base='mmdet.ResNet',
        insert=[dict(at='layer3.4', layer=attention)],
    )
)
