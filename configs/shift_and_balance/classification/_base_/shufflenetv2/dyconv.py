# Dynamic convolution, four kernels, temperature 30, in all three convolutions of each branch2.
convs = [dict(at='layers.[0-2].*.branch2.*', layer=dict(type='kronattn_mm.DynamicConv2d'))]
insert = []
