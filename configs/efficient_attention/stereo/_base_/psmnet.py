# PSMNet with stacked hourglasses (arXiv 1803.08669) for disparities below 192.
model = dict(
    type='kronattn_mm.PSMNet',
    data_preprocessor=dict(type='kronattn_mm.StereoDataPreprocessor', pad_size_divisor=16),
    backbone=dict(
        type='kronattn_mm.PSMFeatures', base_channels=32, out_channels=32, blocks=(3, 16, 3, 3)
    ),
    neck=dict(type='kronattn_mm.PSMAggregation', in_channels=64, channels=32, planes=48),
    head=dict(
        type='kronattn_mm.DisparityHead',
        channels=32,
        max_disparity=192,
        loss_weights=(0.5, 0.7, 1.0),
    ),
)
