# No attention.
convs = []
insert = []
