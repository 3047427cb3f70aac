# SSDLite with KANet_KV (arXiv 2007.08442) on COCO. Not in the paper: mmdet's SSDLite-MobileNetV2,
# its levels, anchors, data and schedule (from scratch), with the backbone exchanged. The head is
# ours because mmdet's stops at its first evaluation; it is the same otherwise.
_base_ = 'mmdet::ssd/ssdlite_mobilenetv2-scratch_8xb24-600e_coco.py'

custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
model = dict(
    backbone=dict(
        _delete_=True,
        type='kronattn_mm.KANet',
        attention=dict(
            type='kronattn_mm.KroneckerAttention2d',
            mode='kv',
            transforms='v',
            residual=False,
            coefficient_norm='batch_norm',
        ),
        out_indices=(4, 7),  # 96 channels at stride 16, 1280 at stride 32
        norm_cfg=dict(type='BN', eps=0.001, momentum=0.03),
    ),
    bbox_head=dict(type='kronattn_mm.SSDHead'),
)
