# Shift-and-Balance in all three convolutions of each unit, that is of its branch2; branch1,
# which only the units that halve the map have, stays as it is. The depthwise convolutions are
# no wider than the others here, so that their hidden units are c_out as well (section 5.1).
convs = [
    dict(
        at='layers.[0-2].*.branch2.*',
        layer=dict(type='kronattn_mm.ShiftBalanceConv2d', depthwise_hidden_ratio=1.0),
    )
]
insert = []
