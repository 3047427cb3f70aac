# R-C3D with a ResNet-50 over clips: windows of 768 frames, 112 x 112 pixels, 96 positions in time.
#
# The efficient-attention paper says "R-C3D" and "ResNet-50" (table 6) and no more. What it leaves
# open is from the public port of R-C3D, github.com/sunnyxiaohu/R-C3D.pytorch: stages 1 to 3 on the
# window, stage 4 on pooled proposals, sizes and thresholds of its configs for THUMOS14 and, for the
# size of pooled proposals, of its ActivityNet runs with a 3D ResNet-50 (16, 4, 4).
model = dict(
    type='kronattn_mm.RC3D',
    data_preprocessor=dict(
        type='kronattn_mm.ClipPreprocessor',
        mean=[90.0, 98.0, 102.0],  # of BGR, as of the port; no division
        std=[1.0, 1.0, 1.0],
        bgr_to_rgb=False,
    ),
    backbone=dict(
        type='kronattn_mm.ResNet3d',
        stage_blocks=(3, 4, 6, 3),
        frozen_stages=0,
        norm_eval=True,  # one to four windows a step are too few for batch statistics
    ),
    proposal_head=dict(
        type='kronattn_mm.TemporalProposalHead',
        in_channels=1024,
        feat_channels=512,
        scales=(2, 4, 5, 6, 8, 9, 10, 12, 14, 16),
        positive_iou=0.7,
        negative_iou=0.3,
        samples=64,
        nms_iou=(0.8, 0.9),
        max_proposals=(2000, 300),
    ),
    segment_head=dict(
        type='kronattn_mm.SegmentHead',
        in_channels=2048,
        num_classes=20,
        samples=128,
        target_stds=(0.1, 0.2),
        nms_iou=0.4,
    ),
    shared_stages=3,
    pooled_size=(16, 4, 4),
)
