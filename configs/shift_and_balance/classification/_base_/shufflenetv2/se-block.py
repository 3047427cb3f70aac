# Squeeze-and-Excite after each unit, whose two halves are concatenated and shuffled by then.
convs = []
insert = [dict(at='layers.[0-2].*', layer=dict(type='kronattn_mm.SqueezeExcite2d'))]
