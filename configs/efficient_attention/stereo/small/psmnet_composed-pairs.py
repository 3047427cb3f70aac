# A small PSMNet on pairs composed from photographs, 192 x 128 pixels with disparities below 32; it
# trains on a CPU. tools/dataset_tools/make_stereo_pairs.py makes the pairs, docs/stereo.md says
# what was measured.
_base_ = '../psmnet_8xb3-100e_sceneflow.py'

model = dict(
    data_preprocessor=dict(pad_size_divisor=4),
    backbone=dict(base_channels=16, out_channels=16, blocks=(1, 2, 1, 1), windows=(16, 8, 4)),
    neck=dict(in_channels=32, channels=16, planes=8),
    head=dict(channels=16, max_disparity=32),
)

data_root = 'data/stereo_pairs/'
train_pipeline = [
    dict(type='kronattn_mm.LoadStereoPair'),
    dict(type='kronattn_mm.LoadDisparity'),
    dict(type='kronattn_mm.RandomCropPair', crop_size=(64, 128)),
    dict(type='kronattn_mm.PackStereoInputs'),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        _delete_=True,
        type='kronattn_mm.SceneFlowDataset',
        data_root=data_root,
        data_prefix=dict(
            image='frames_cleanpass/TRAIN',
            disparity='disparity/TRAIN',
            occlusion='disparity_occlusions/TRAIN',
        ),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(max_disparity=32)
test_evaluator = val_evaluator

train_cfg = dict(max_epochs=10, val_interval=2)
optim_wrapper = dict(clip_grad=dict(max_norm=35))
param_scheduler = [dict(type='MultiStepLR', by_epoch=True, milestones=[8], gamma=0.1)]
auto_scale_lr = dict(base_batch_size=4)
custom_hooks = [
    dict(type='kronattn_mm.AttentionStatusHook', image_shape=(128, 192)),
    dict(type='CheckInvalidLossHook', interval=50),
    dict(type='kronattn_mm.EpochSeed'),
    dict(type='kronattn_mm.ValidationPictures', number=4),
]
default_hooks = dict(logger=dict(interval=25), checkpoint=dict(interval=1, max_keep_ckpts=2))
env_cfg = dict(cudnn_benchmark=False, dist_cfg=dict(backend='gloo'))
randomness = dict(seed=0)
