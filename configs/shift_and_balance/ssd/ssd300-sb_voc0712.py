# mmdet's SSD300 (VGG-16) on Pascal VOC as it is, with Shift-and-Balance in the 15 convolutions of
# the backbone. VGG takes no `conv_cfg`, so `convs` names them. The head is ours because mmdet's
# stops at its first evaluation; it is the same otherwise.
_base_ = 'mmdet::pascal_voc/ssd300_voc0712.py'

custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
model = dict(
    backbone=dict(
        type='kronattn_mm.Plugged',
        base='mmdet.SSDVGG',
        convs=[dict(at='features*', layer=dict(type='kronattn_mm.ShiftBalanceConv2d'))],
    ),
    bbox_head=dict(type='kronattn_mm.SSDHead'),
)
# Both figures that are called mAP, as in configs/_base_/datasets/voc0712.py.
test_evaluator = [
    dict(type='VOCMetric', metric='mAP', eval_mode='11points', prefix='pascal_voc'),
    dict(type='VOCMetric', metric='mAP', eval_mode='area', prefix='pascal_voc_area'),
]
