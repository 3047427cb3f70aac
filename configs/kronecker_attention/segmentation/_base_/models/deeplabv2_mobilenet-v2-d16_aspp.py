# A DeepLabV2 for a CPU: MobileNetV2 with output stride 16. Batch norms keep their statistics, since
# batches are small, and the first two stages their weights. Input of the pretrained weights that
# Google published for such a network: RGB, from -1 to 1. Give weights by
#   --cfg-options model.backbone.init_cfg.type=Pretrained model.backbone.init_cfg.checkpoint=FILE
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[127.5, 127.5, 127.5],
        std=[127.5, 127.5, 127.5],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(161, 161),
    ),
    backbone=dict(
        type='MobileNetV2',
        strides=(1, 2, 2, 2, 1, 1, 1),
        dilations=(1, 1, 1, 1, 1, 1, 2),
        # mmseg's MobileNetV2 returns a bare map instead of a list if only one is asked for.
        out_indices=(1, 2, 4, 6),
        frozen_stages=2,
        norm_eval=True,
    ),
    decode_head=dict(
        type='kronattn_mm.DeepLabV2Head',
        in_channels=320,
        in_index=3,
        num_classes=21,
        loss_decode=dict(type='CrossEntropyLoss', avg_non_ignore=True),
        align_corners=True,
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
