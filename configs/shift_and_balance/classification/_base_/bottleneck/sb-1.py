# Shift-and-Balance in the first pointwise convolution of each bottleneck.
convs = [dict(at='layer[2-7].*.conv.0.conv', layer=dict(type='kronattn_mm.ShiftBalanceConv2d'))]
insert = []
