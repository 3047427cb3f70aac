# Scaled attention in both pointwise convolutions of each unit's branch2.
convs = [
    dict(at='layers.[0-2].*.branch2.[02].*', layer=dict(type='kronattn_mm.SqueezeExciteConv2d'))
]
insert = []
