"""What `make quickstart DATA=<a COCO folder>` trains: photographs, in minutes on a CPU.

MobileNetV2 has no res3 and res4; its stages of the same strides, 16 and 32, are layer5 and layer7.
With pretrained weights (tools/quickstart.py --weights) the first stages stay frozen and the
backbone learns at a twentieth of the learning rate. tools/quickstart.py fills in the data, the
classes and the number of epochs.
"""

_base_ = './mask-rcnn_r18_fpn_ea-res3-4-fpn1-5_digits.py'

attention = dict(type='kronattn_mm.EfficientAttention2d', key_channels=32, value_channels=32)
model = dict(
    backbone=dict(
        _delete_=True,
        type='kronattn_mm.Plugged',
        base='mmdet.MobileNetV2',
        insert=[dict(at='layer5+layer7', layer=attention)],
        out_indices=(1, 2, 4, 7),
    ),
    neck=dict(in_channels=[24, 32, 96, 1280]),
    rpn_head=dict(anchor_generator=dict(scales=[8], ratios=[0.5, 1.0, 2.0])),
    roi_head=dict(
        bbox_head=dict(num_classes=80, reg_class_agnostic=False), mask_head=dict(num_classes=80)
    ),
)

image_size = (320, 320)  # the longer side, aspect ratio kept
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale=image_size, keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=image_size, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
data_root = 'data/coco/'
train_dataloader = dict(
    batch_size=4,
    dataset=dict(
        data_root=data_root,
        ann_file='annotations/instances_train2017.json',
        data_prefix=dict(img='train2017/'),
        metainfo=dict(_delete_=True),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=4,
    dataset=dict(
        data_root=data_root,
        ann_file='annotations/instances_val2017.json',
        data_prefix=dict(img='val2017/'),
        metainfo=dict(_delete_=True),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'annotations/instances_val2017.json')
test_evaluator = val_evaluator
optim_wrapper = dict(optimizer=dict(lr=2e-3))
