# THUMOS14: the 200 videos with annotations of its validation set are for training, the 213 of its
# test set for testing. Frames are extracted at 25 a second; ../README.md shows how.
#
# Windows of 768 frames, a quarter of that from one to the next, and frames of 128 x 171 pixels cut
# to 112 x 112 are those of the R-C3D port named in r-c3d_r50.py.
classes = (
    'BaseballPitch',
    'BasketballDunk',
    'Billiards',
    'CleanAndJerk',
    'CliffDiving',
    'CricketBowling',
    'CricketShot',
    'Diving',
    'FrisbeeCatch',
    'GolfSwing',
    'HammerThrow',
    'HighJump',
    'JavelinThrow',
    'LongJump',
    'PoleVault',
    'Shotput',
    'SoccerPenalty',
    'TennisSwing',
    'ThrowDiscus',
    'VolleyballSpiking',
)
train_pipeline = [
    dict(type='kronattn_mm.LoadFrames'),
    dict(type='kronattn_mm.ResizeFrames', scale=(128, 171)),
    dict(type='kronattn_mm.CropFrames', size=112, random=True),
    dict(type='kronattn_mm.FlipFrames'),
    dict(type='kronattn_mm.PackSegments'),
]
test_pipeline = [
    dict(type='kronattn_mm.LoadFrames'),
    dict(type='kronattn_mm.ResizeFrames', scale=(128, 171)),
    dict(type='kronattn_mm.CropFrames', size=112, random=False),
    dict(type='kronattn_mm.PackSegments'),
]
dataset = dict(
    type='kronattn_mm.UntrimmedVideoDataset',
    data_root='data/thumos14/',
    ann_file='annotations.json',
    metainfo=dict(classes=classes),
    window=768,
    step=192,
    fps=25,
)
train_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(subset='validation', pipeline=train_pipeline, **dataset),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(subset='test', pipeline=test_pipeline, test_mode=True, **dataset),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='kronattn_mm.TemporalMAP', definition='thumos', nms_iou=0.4)
test_evaluator = val_evaluator
