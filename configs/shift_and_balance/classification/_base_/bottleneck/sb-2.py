# Shift-and-Balance in both pointwise convolutions of each bottleneck.
convs = [
    dict(
        at='layer[2-7].*.conv.[02].conv+layer1.*.conv.1.conv',
        layer=dict(type='kronattn_mm.ShiftBalanceConv2d'),
    )
]
insert = []
