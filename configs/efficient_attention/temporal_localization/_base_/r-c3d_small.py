# A small R-C3D that a CPU trains in minutes, from nothing: one block in a stage, an eighth of the
# channels, a smaller stem, windows of 128 frames of 32 x 32 pixels, 16 positions in time.
model = dict(
    type='kronattn_mm.RC3D',
    data_preprocessor=dict(type='kronattn_mm.ClipPreprocessor'),
    backbone=dict(
        type='kronattn_mm.ResNet3d',
        stage_blocks=(1, 1, 1, 1),
        base_channels=8,
        stem_kernel=(3, 5, 5),
    ),
    proposal_head=dict(
        type='kronattn_mm.TemporalProposalHead',
        in_channels=128,
        feat_channels=64,
        scales=(2, 3, 4, 5, 6, 7.5),
        samples=32,
        nms_iou=(0.8, 0.8),
        max_proposals=(60, 40),
    ),
    segment_head=dict(type='kronattn_mm.SegmentHead', in_channels=256, num_classes=5, samples=24),
    shared_stages=3,
    pooled_size=(4, 2, 2),
)
