# DeepLabV2 with a ResNet-101 (arXiv 1606.00915), the baseline of "Kronecker Attention Networks"
# (arXiv 2007.08442), section 4.6: output stride 8 by dilations 2 and 4 in the last two stages.
#
# Deviations and readings:
# - The paper starts from weights trained on ImageNet and then on MS-COCO. The latter are not
#   published for these libraries; this starts from ImageNet weights. For the same baseline the
#   difference was reported to be 75.1 against 71.7 mean IoU (Wang and Ji, 2018).
# - Batch norms keep the statistics of the pretrained weights; their scales and shifts are trained.
# - The scores are upsampled to the labels and the loss is taken there, as mmseg does.
norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(321, 321),
    ),
    backbone=dict(
        type='ResNet',
        depth=101,
        num_stages=4,
        out_indices=(3,),
        strides=(1, 2, 1, 1),
        dilations=(1, 1, 2, 4),
        norm_cfg=norm_cfg,
        norm_eval=True,
        style='pytorch',
        init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet101'),
    ),
    decode_head=dict(
        type='kronattn_mm.DeepLabV2Head',
        in_channels=2048,
        in_index=0,
        num_classes=21,
        dilations=(6, 12, 18, 24),
        loss_decode=dict(type='CrossEntropyLoss', avg_non_ignore=True),
        align_corners=True,
    ),
    train_cfg=dict(),
    # The whole picture at once and at its own size: no crops, no other scales, no CRF.
    test_cfg=dict(mode='whole'),
)
