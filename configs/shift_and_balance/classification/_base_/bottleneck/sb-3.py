# Shift-and-Balance in all three convolutions of each bottleneck.
convs = [dict(at='layer*', layer=dict(type='kronattn_mm.ShiftBalanceConv2d'))]
insert = []
