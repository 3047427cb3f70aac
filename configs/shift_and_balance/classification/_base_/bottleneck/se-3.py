# Scaled attention in all three convolutions of each bottleneck.
convs = [dict(at='layer*', layer=dict(type='kronattn_mm.SqueezeExciteConv2d'))]
insert = []
