# RetinaNet with KANet_KV (arXiv 2007.08442) on COCO. Not in the paper: mmdet's RetinaNet, data and
# schedule, with the backbone exchanged. Its maps of stride 8, 16 and 32 have 32, 96 and 320
# channels.
#
# No weights of KANet have been published; `checkpoint` is what the classification config trains.
# `--cfg-options model.backbone.init_cfg=None` starts from Xavier initialisation, for which this
# schedule is too short.
_base_ = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'

custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
checkpoint = 'work_dirs/kanet-kv_8xb64-150e_in1k/epoch_150.pth'
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
        out_indices=(2, 4, 6),
        frozen_stages=1,
        norm_eval=True,
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint, prefix='backbone.'),
    ),
    neck=dict(in_channels=[32, 96, 320], start_level=0),
)
