# KANet_QKV (arXiv 2007.08442, tables 3 and 4): queries are averages too.
_base_ = './kanet-kv_8xb64-150e_in1k.py'

model = dict(backbone=dict(attention=dict(mode='qkv')))
