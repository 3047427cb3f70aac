# Squeeze-and-Excite on what each bottleneck adds to its shortcut, as in its own paper.
convs = []
insert = [dict(at='layer*.*.conv', layer=dict(type='kronattn_mm.SqueezeExcite2d'))]
