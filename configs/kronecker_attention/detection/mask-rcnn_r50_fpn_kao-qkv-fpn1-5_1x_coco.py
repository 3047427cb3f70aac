# Mask R-CNN with KAO_QKV (arXiv 2007.08442, section 3.4) on every level of the pyramid. Not in the
# paper: mmdet's Mask R-CNN, data and schedule. The residual and the values' transformation, which
# starts at zero, make each layer the identity at first, so pretrained weights keep their meaning.
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'

custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
attention = dict(
    type='kronattn_mm.KroneckerAttention2d',
    mode='qkv',
    transforms='v',
    residual=True,
    zero_init=True,
    coefficient_norm='batch_norm',
)
model = dict(
    neck=dict(
        type='kronattn_mm.Plugged', base='mmdet.FPN', insert=[dict(at='fpn1-5', layer=attention)]
    )
)
