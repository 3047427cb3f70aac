# AttnNet+Pool (arXiv 2007.08442, table 4): keys and values are pooled 2 x 2.
_base_ = './attnnet_8xb64-150e_in1k.py'

model = dict(backbone=dict(attention=dict(pooling=True)))
