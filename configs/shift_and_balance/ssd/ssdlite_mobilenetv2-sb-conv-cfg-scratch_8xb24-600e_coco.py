# mmdet's SSDLite-MobileNetV2 as it is, with Shift-and-Balance in all 52 convolutions of the
# backbone by `conv_cfg` alone: the first and the last one too. The head is ours because mmdet's
# stops at its first evaluation; it is the same otherwise.
_base_ = 'mmdet::ssd/ssdlite_mobilenetv2-scratch_8xb24-600e_coco.py'

custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
model = dict(
    backbone=dict(conv_cfg=dict(type='kronattn_mm.ShiftBalanceConv2d')),
    bbox_head=dict(type='kronattn_mm.SSDHead'),
)
