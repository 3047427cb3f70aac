# R-C3D with a ResNet-50 and efficient attention after its stages 3 and 4 on THUMOS14: "EA R-C3D" of
# table 6. Widths of keys and values are not stated there; 64 is what the paper has everywhere else.
_base_ = 'r-c3d_r50_thumos14.py'

attention = dict(type='kronattn_mm.EfficientAttention3d', key_channels=64, value_channels=64)
model = dict(
    backbone=dict(
        type='kronattn_mm.Plugged',
        base='kronattn_mm.ResNet3d',
        insert=[dict(at='res3-4', layer=attention)],
    )
)
