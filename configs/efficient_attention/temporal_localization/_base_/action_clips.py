# Clips of 192 frames, 8 a second, that tools/dataset_tools/make_action_clips.py makes of any folder
# of COCO form; ../../../../docs/temporal_localization.md has the command.
classes = ('slide', 'climb', 'spin', 'pulse', 'circle')
train_pipeline = [
    dict(type='kronattn_mm.LoadFrames'),
    dict(type='kronattn_mm.FlipFrames'),
    dict(type='kronattn_mm.PackSegments'),
]
test_pipeline = [dict(type='kronattn_mm.LoadFrames'), dict(type='kronattn_mm.PackSegments')]
dataset = dict(
    type='kronattn_mm.UntrimmedVideoDataset',
    data_root='data/action_clips/',
    ann_file='annotations.json',
    metainfo=dict(classes=classes),
    window=128,
)
train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(subset='training', step=32, pipeline=train_pipeline, **dataset),
)
val_dataloader = dict(
    batch_size=4,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(subset='validation', step=64, pipeline=test_pipeline, test_mode=True, **dataset),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='kronattn_mm.TemporalMAP')
test_evaluator = val_evaluator
