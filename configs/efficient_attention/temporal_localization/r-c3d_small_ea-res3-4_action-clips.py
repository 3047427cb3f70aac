# A small R-C3D with efficient attention after stages 3 and 4, on clips with known actions.
_base_ = 'r-c3d_small_action-clips.py'

attention = dict(type='kronattn_mm.EfficientAttention3d', key_channels=64, value_channels=64)
model = dict(
    backbone=dict(
        type='kronattn_mm.Plugged',
        base='kronattn_mm.ResNet3d',
        insert=[dict(at='res3-4', layer=attention)],
    )
)
