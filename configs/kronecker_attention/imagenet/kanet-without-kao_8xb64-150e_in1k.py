# KANet w/o KAO (arXiv 2007.08442, table 5): BaseModules in place of KANet's AttnSkipModules.
_base_ = './kanet-kv_8xb64-150e_in1k.py'

model = dict(backbone=dict(arch='kanet_without_kao'))
