_base_ = './deeplabv2_mobilenet-v2-d16_aspp.py'

model = dict(
    decode_head=dict(
        _delete_=True,
        type='kronattn_mm.AttentionHead',
        in_channels=320,
        in_index=3,
        channels=64,
        kernel_size=1,
        num_classes=21,
        norm_cfg=dict(type='BN'),
        attention=dict(type='kronattn_mm.UnfoldedAttention2d', transforms='qkv', key_channels=32),
        loss_decode=dict(type='CrossEntropyLoss', avg_non_ignore=True),
        align_corners=True,
    )
)
