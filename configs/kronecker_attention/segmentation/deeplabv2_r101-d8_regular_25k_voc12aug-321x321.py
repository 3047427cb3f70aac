# Kronecker Attention Networks (arXiv 2007.08442), table 6: regular attention as the output layer,
# with linear transformations on queries, keys and values. The paper does not state the layer's
# width, nor what stands before and after it; here mmseg's usual order and 512 channels.
_base_ = './deeplabv2_r101-d8_aspp_25k_voc12aug-321x321.py'

model = dict(
    decode_head=dict(
        _delete_=True,
        type='kronattn_mm.AttentionHead',
        in_channels=2048,
        in_index=0,
        channels=512,
        num_classes=21,
        norm_cfg=dict(type='BN', requires_grad=True),
        attention=dict(type='kronattn_mm.UnfoldedAttention2d', transforms='qkv', key_channels=64),
        loss_decode=dict(type='CrossEntropyLoss', avg_non_ignore=True),
        align_corners=True,
    )
)
