_base_ = './deeplabv2_mobilenet-v2-d16_regular.py'

model = dict(decode_head=dict(attention=dict(type='kronattn_mm.KroneckerAttention2d', mode='kv')))
