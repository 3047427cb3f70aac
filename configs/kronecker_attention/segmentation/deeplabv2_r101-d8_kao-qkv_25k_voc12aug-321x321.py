# Kronecker Attention Networks (arXiv 2007.08442), table 6: KAO_QKV as the output layer, with linear
# transformations on queries, keys and values.
_base_ = './deeplabv2_r101-d8_regular_25k_voc12aug-321x321.py'

model = dict(decode_head=dict(attention=dict(type='kronattn_mm.KroneckerAttention2d', mode='qkv')))
