# Scene Flow as PSMNet trains on it: FlyingThings3D, Monkaa and Driving, windows of 256 x 512, and
# tests on FlyingThings3D's TEST. Each is unpacked in a folder of its own in data/sceneflow.
data_root = 'data/sceneflow/'
train_pipeline = [
    dict(type='kronattn_mm.LoadStereoPair'),
    dict(type='kronattn_mm.LoadDisparity'),
    dict(type='kronattn_mm.RandomCropPair', crop_size=(256, 512)),
    dict(type='kronattn_mm.PackStereoInputs'),
]
test_pipeline = [
    dict(type='kronattn_mm.LoadStereoPair'),
    dict(type='kronattn_mm.LoadDisparity'),
    dict(type='kronattn_mm.PackStereoInputs'),
]
flying_things = data_root + 'flyingthings3d/'
train_dataloader = dict(
    batch_size=3,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='ConcatDataset',
        datasets=[
            dict(
                type='kronattn_mm.SceneFlowDataset',
                data_root=flying_things,
                data_prefix=dict(
                    image='frames_cleanpass/TRAIN',
                    disparity='disparity/TRAIN',
                    occlusion='disparity_occlusions/TRAIN',
                ),
                pipeline=train_pipeline,
            ),
            dict(
                type='kronattn_mm.SceneFlowDataset',
                data_root=data_root + 'monkaa/',
                pipeline=train_pipeline,
            ),
            dict(
                type='kronattn_mm.SceneFlowDataset',
                data_root=data_root + 'driving/',
                pipeline=train_pipeline,
            ),
        ],
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='kronattn_mm.SceneFlowDataset',
        data_root=flying_things,
        data_prefix=dict(
            image='frames_cleanpass/TEST',
            disparity='disparity/TEST',
            occlusion='disparity_occlusions/TEST',
        ),
        pipeline=test_pipeline,
        test_mode=True,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='kronattn_mm.DisparityMetric', max_disparity=192)
test_evaluator = val_evaluator
