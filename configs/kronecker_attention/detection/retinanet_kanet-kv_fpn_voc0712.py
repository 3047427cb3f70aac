# RetinaNet with KANet_KV (arXiv 2007.08442) on Pascal VOC 2007 + 2012. Not in the paper: mmdet's
# RetinaNet, data and schedule, with the backbone exchanged; see the COCO config beside this one for
# `checkpoint`.
_base_ = 'mmdet::pascal_voc/retinanet_r50_fpn_1x_voc0712.py'

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
# Both figures that are called mAP, as in configs/_base_/datasets/voc0712.py.
test_evaluator = [
    dict(type='VOCMetric', metric='mAP', eval_mode='11points', prefix='pascal_voc'),
    dict(type='VOCMetric', metric='mAP', eval_mode='area', prefix='pascal_voc_area'),
]
