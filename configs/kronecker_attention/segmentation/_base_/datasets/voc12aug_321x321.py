# PASCAL VOC 2012 with the extra annotations: 1,464 + 9,118 training pictures, 1,449 to validate.
# SegmentationClassAug and aug.txt come from mmseg's tools/dataset_converters/voc_aug.py.
#
# The paper names random scaling and 321 x 321 crops. Ours: scales from 0.5 to 1.5 of the picture's
# own size, as DeepLab's public code has, and flipping.
data_root = 'data/VOCdevkit/VOC2012'
crop_size = (321, 321)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(500, 500), ratio_range=(0.5, 1.5), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]

train_part = dict(
    type='PascalVOCDataset',
    data_root=data_root,
    data_prefix=dict(img_path='JPEGImages', seg_map_path='SegmentationClass'),
    ann_file='ImageSets/Segmentation/train.txt',
    pipeline=train_pipeline,
)
aug_part = dict(
    type='PascalVOCDataset',
    data_root=data_root,
    data_prefix=dict(img_path='JPEGImages', seg_map_path='SegmentationClassAug'),
    ann_file='ImageSets/Segmentation/aug.txt',
    pipeline=train_pipeline,
)
train_dataloader = dict(
    batch_size=8,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(type='ConcatDataset', datasets=[train_part, aug_part]),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='PascalVOCDataset',
        data_root=data_root,
        data_prefix=dict(img_path='JPEGImages', seg_map_path='SegmentationClass'),
        ann_file='ImageSets/Segmentation/val.txt',
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

# aAcc is the pixel accuracy of the paper's table, mIoU its mean intersection over union.
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
