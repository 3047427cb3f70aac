# Efficient attention (arXiv 1812.01243), table 7, Nonlocal-PSMNet: for `kronattn cost`, which finds
# the 9.68 TB that keep anybody from training it.
_base_ = './psmnet_8xb3-100e_sceneflow.py'

attention = dict(type='kronattn_mm.NonLocal3d', reduction=2)
model = dict(
    neck=dict(
        type='kronattn_mm.Plugged',
        base='kronattn_mm.PSMAggregation',
        insert=[dict(at='out2', layer=attention)],
    )
)
