# Shift-and-Balance in the first pointwise convolution of each unit's branch2.
convs = [dict(at='layers.[0-2].*.branch2.0.*', layer=dict(type='kronattn_mm.ShiftBalanceConv2d'))]
insert = []
