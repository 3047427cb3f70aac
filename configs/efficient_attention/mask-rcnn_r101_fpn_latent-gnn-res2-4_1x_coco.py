# Efficient attention (arXiv 1812.01243), table 3, row LatentGNN, ResNet-101.
# That paper quotes LatentGNN's own results, so this has the places and the schedule of its authors'
# code (C3, C4, C5 there are res2, res3, res4 here; 1x), in mmdet's Mask R-CNN. Which reduction and
# how many nodes table 3 counted is not stated; see docs/cost.md.
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r101_fpn_1x_coco.py'

custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
attention = dict(type='kronattn_mm.LatentGNN2d', latent_channels=128, channel_stride=4)
model = dict(
    backbone=dict(
        type='kronattn_mm.Plugged', base='mmdet.ResNet', insert=[dict(at='res2-4', layer=attention)]
    )
)
