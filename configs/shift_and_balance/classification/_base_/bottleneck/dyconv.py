# Dynamic convolution, four kernels, temperature 30, in all three convolutions of each bottleneck.
convs = [dict(at='layer*', layer=dict(type='kronattn_mm.DynamicConv2d'))]
insert = []
