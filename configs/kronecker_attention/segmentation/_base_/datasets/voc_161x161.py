# Any set in the layout of PASCAL VOC with its 21 classes: JPEGImages, SegmentationClass and
# ImageSets/Segmentation/{train,val}.txt below KRONATTN_VOC_DATA.
data_root = '{{$KRONATTN_VOC_DATA:data/VOCdevkit/VOC2012}}'
crop_size = (161, 161)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(320, 320), ratio_range=(0.5, 1.5), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.9),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
_data = dict(
    type='PascalVOCDataset',
    data_root=data_root,
    data_prefix=dict(img_path='JPEGImages', seg_map_path='SegmentationClass'),
)
train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(ann_file='ImageSets/Segmentation/train.txt', pipeline=train_pipeline, **_data),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(ann_file='ImageSets/Segmentation/val.txt', pipeline=test_pipeline, **_data),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
