# SSDLite with KANet_QKV (arXiv 2007.08442) on COCO; see the config that this one changes.
_base_ = './ssdlite_kanet-kv-scratch_8xb24-600e_coco.py'

model = dict(backbone=dict(attention=dict(mode='qkv')))
