# The small PSMNet with efficient attention after its last hourglass, trained in the same way.
_base_ = './psmnet_composed-pairs.py'

attention = dict(type='kronattn_mm.EfficientAttention3d', key_channels=8, value_channels=8)
model = dict(
    neck=dict(
        type='kronattn_mm.Plugged',
        base='kronattn_mm.PSMAggregation',
        insert=[dict(at='out2', layer=attention)],
    )
)
