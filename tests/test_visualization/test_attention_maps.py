"""Which layer, which maps, and which part of them."""

import pytest
import torch
from torch import nn

pytest.importorskip('mmdet')

from mmengine.registry import MODELS, init_default_scope

from kronattn_mm.visualization.attention_maps import (
    AttentionMapError,
    MapRecorder,
    choose_layer,
    crop_maps,
    select_distinct,
    showable_layers,
    shown_region,
)

EFFICIENT = dict(type='kronattn_mm.EfficientAttention2d', key_channels=8, value_channels=8)


@pytest.fixture(autouse=True, scope='module')
def one_thread():
    """Tensors here are so small that handing them to more threads costs more than it saves."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def blob(row, column, size=24, width=3.0):
    rows = torch.arange(size).view(-1, 1) - row
    columns = torch.arange(size).view(1, -1) - column
    weights = torch.exp(-(rows**2 + columns**2) / (2 * width**2))
    return weights / weights.sum()


def detector(neck=(), backbone=(), head=()):
    """A RetinaNet small enough to build and run in a moment."""
    init_default_scope('mmdet')
    return MODELS.build(
        dict(
            type='RetinaNet',
            data_preprocessor=dict(
                type='DetDataPreprocessor',
                mean=[120.0] * 3,
                std=[60.0] * 3,
                bgr_to_rgb=True,
                pad_size_divisor=32,
            ),
            backbone=dict(
                type='kronattn_mm.Plugged',
                base='mmdet.ResNet',
                insert=list(backbone),
                depth=18,
                base_channels=8,
                norm_eval=False,
            ),
            neck=dict(
                type='kronattn_mm.Plugged',
                base='mmdet.FPN',
                insert=list(neck),
                in_channels=[8, 16, 32, 64],
                out_channels=16,
                num_outs=5,
            ),
            bbox_head=dict(
                type='kronattn_mm.Plugged',
                base='mmdet.RetinaHead',
                insert=list(head),
                num_classes=2,
                in_channels=16,
                feat_channels=16,
                stacked_convs=1,
            ),
            test_cfg=dict(
                nms_pre=100,
                min_bbox_size=0,
                score_thr=0.5,
                max_per_img=5,
                nms=dict(type='nms', iou_threshold=0.5),
            ),
        )
    ).eval()


def test_distinct_maps_come_before_copies_of_them():
    corner, opposite, middle = blob(4, 4), blob(19, 19), blob(11, 12, width=4)
    copies = [0.9 * corner + 0.1 * corner.mean() + 1e-6 * torch.rand(24, 24) for _ in range(5)]
    maps = torch.stack([*copies, corner, *copies, opposite, middle])
    order = select_distinct(maps, len(maps))
    assert set(order[:3]) == {5, 11, 12}
    assert sorted(order) == list(range(len(maps)))


def test_a_map_and_its_negative_are_the_most_distinct():
    foreground = blob(8, 8)
    background = (foreground.max() - foreground) / (foreground.max() - foreground).sum()
    elsewhere = blob(8, 12)
    assert select_distinct(torch.stack([elsewhere, foreground, background]), 3)[:2] in (
        [0, 2],
        [1, 2],
    )


def test_even_maps_come_last():
    even = torch.full((24, 24), 1 / 576)
    nearly = even * (1 + 0.001 * torch.randn(24, 24))
    maps = torch.stack([even, nearly, blob(4, 4), torch.zeros(24, 24), blob(4, 5)])
    order = select_distinct(maps, 5)
    assert set(order[:2]) == {2, 4}
    assert order[2:] == [1, 0, 3]
    assert select_distinct(torch.stack([even, even]), 1) == [0]


def test_selection_is_deterministic_and_does_not_depend_on_scale():
    maps = torch.randn(32, 9, 7).flatten(1).softmax(1).view(32, 9, 7)
    order = select_distinct(maps, 6)
    assert len(set(order)) == 6
    assert order == select_distinct(maps.clone(), 6) == select_distinct(maps * 2, 6)
    # Equals come in their own order.
    assert select_distinct(maps[:1].expand(4, -1, -1), 4) == [0, 1, 2, 3]


def test_signed_maps_can_be_chosen_among_too():
    keys = torch.randn(8, 6, 6)
    assert sorted(select_distinct(keys, 20)) == list(range(8))


@pytest.mark.parametrize('maps, count', [(torch.ones(2, 3), 1), (torch.ones(2, 3, 3), 0)])
def test_selection_refuses_what_it_cannot_use(maps, count):
    with pytest.raises(ValueError, match=r'\(2, 3\)|got 0'):
        select_distinct(maps, count)


def test_padding_of_the_batch_is_cut_off():
    # 100 x 150 padded to 128 x 160 by the data preprocessor
    assert shown_region((100, 150), (128, 160), {}) == (100, 150)


def test_padding_of_the_pipeline_is_cut_off():
    # a Pad(size=640) in the pipeline: img_shape says 640 x 640, scale_factor knows better
    meta = dict(ori_shape=(480, 600), img_shape=(640, 640), scale_factor=(640 / 600, 512 / 480))
    assert shown_region((640, 640), (640, 640), meta) == (512, 640)


def test_a_crop_shows_what_was_left():
    meta = dict(ori_shape=(480, 640), scale_factor=(256 / 480, 256 / 480))
    assert shown_region((224, 224), (224, 224), meta) == (224, 224)


def test_only_the_window_that_was_seen_is_shown():
    assert shown_region((512, 1024), (256, 256), dict(scale_factor=None)) == (256, 256)


def test_crop_is_to_the_nearest_cell_and_keeps_one():
    maps = torch.rand(3, 32, 40)
    assert torch.equal(crop_maps(maps, (128, 160), (100, 150)), maps[:, :25, :38])
    assert crop_maps(maps[:, :1, :2], (128, 160), (10, 150)).shape == (3, 1, 2)


def test_default_is_the_finest_map_and_the_neck_before_the_backbone():
    model = detector(
        neck=[dict(at='fpn1-5', layer=EFFICIENT)], backbone=[dict(at='res1+res4', layer=EFFICIENT)]
    )
    assert choose_layer(model) == 'neck.fpn1'
    assert choose_layer(detector(backbone=[dict(at='res2-4', layer=EFFICIENT)])) == 'backbone.res2'


def test_names_of_layers_are_checked():
    model = detector(
        neck=[dict(at='fpn1-2', layer=EFFICIENT)],
        backbone=[
            dict(at='res3', layer=dict(type='NonLocal2d')),
            dict(at='res4', layer=dict(type='kronattn_mm.RegularAttention2d')),
        ],
    )
    assert list(showable_layers(model)) == ['neck.fpn1', 'neck.fpn2']
    with pytest.raises(AttentionMapError, match="'neck.fpn3'; did you mean 'neck.fpn2'.*neck.fpn1"):
        choose_layer(model, 'neck.fpn3')
    with pytest.raises(AttentionMapError, match='NonLocal2d.*can be shown: neck.fpn1, neck.fpn2'):
        choose_layer(model, 'backbone.res3')
    with pytest.raises(AttentionMapError, match='each position attends in its own way'):
        choose_layer(model, 'backbone.res4')


def test_models_without_maps_are_refused():
    with pytest.raises(AttentionMapError, match='no inserted layers'):
        choose_layer(detector())
    context = dict(type='ContextBlock', ratio=0.25)
    with pytest.raises(AttentionMapError, match='none of the inserted layers .ContextBlock.'):
        choose_layer(detector(backbone=[dict(at='res4', layer=context)]))


def test_recorded_maps_are_those_of_the_layer():
    model = detector(neck=[dict(at='fpn1-5', layer=EFFICIENT)])
    seen = {}
    layer = model.neck.attention.fpn2
    handle = layer.register_forward_pre_hook(lambda _, args: seen.update(x=args[0]))
    with torch.no_grad(), MapRecorder(model, 'neck.fpn2', num_images=2) as recorder:
        model.extract_feat(torch.randn(3, 3, 64, 96))
    handle.remove()
    recorder.check()
    assert recorder.maps.shape == (2, 1, 8, 8, 12)
    assert recorder.network_shape == (64, 96)
    assert torch.equal(recorder.maps, layer.attention_maps(seen['x'])[:2])
    assert not layer._forward_pre_hooks and not model.backbone._forward_pre_hooks


def test_recording_leaves_no_hook_when_the_model_fails():
    model = detector(neck=[dict(at='fpn1', layer=EFFICIENT)])
    with pytest.raises(RuntimeError), MapRecorder(model, 'neck.fpn1'):
        model.extract_feat(torch.randn(1, 5, 64, 64))
    assert not model.neck.attention.fpn1._forward_pre_hooks


def test_recording_under_autocast_is_in_float32():
    model = detector(neck=[dict(at='fpn1', layer=EFFICIENT)])
    with (
        torch.no_grad(),
        torch.autocast('cpu', torch.bfloat16),
        MapRecorder(model, 'neck.fpn1') as recorder,
    ):
        model.extract_feat(torch.randn(1, 3, 64, 64))
    assert recorder.maps.dtype == torch.float32
    torch.testing.assert_close(
        recorder.maps.sum(dim=(3, 4)), torch.ones(1, 1, 8), atol=1e-6, rtol=0
    )


def test_a_layer_on_every_level_gives_the_first():
    model = detector(head=[dict(at='cls_convs.0', layer=EFFICIENT)])
    with torch.no_grad(), MapRecorder(model, 'bbox_head.cls_convs.0') as recorder:
        model.bbox_head(model.extract_feat(torch.randn(1, 3, 64, 64)))
    recorder.check()
    assert recorder.maps.shape == (1, 1, 8, 16, 16)


def test_a_layer_that_was_not_called_is_reported():
    model = detector(head=[dict(at='cls_convs.0', layer=EFFICIENT)])
    with torch.no_grad(), MapRecorder(model, 'bbox_head.cls_convs.0') as recorder:
        model.extract_feat(torch.randn(1, 3, 64, 64))
    with pytest.raises(AttentionMapError, match='bbox_head.cls_convs.0.*was not called'):
        recorder.check()


def test_a_layer_on_regions_is_refused():

    class TwoStage(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.backbone = inner.backbone
            self.neck = inner.neck

        def forward(self, x):
            self.backbone(x)
            self.neck.attention.fpn1(torch.randn(7, 16, 7, 7))

    model = TwoStage(detector(neck=[dict(at='fpn1', layer=EFFICIENT)]))
    with torch.no_grad(), MapRecorder(model, 'neck.fpn1', num_images=7) as recorder:
        model(torch.randn(2, 3, 64, 64))
    with pytest.raises(AttentionMapError, match='7 feature maps for 2 images'):
        recorder.check()


def test_wrapped_models_are_unwrapped():
    from mmengine.registry import MODEL_WRAPPERS

    model = detector(neck=[dict(at='fpn1', layer=EFFICIENT)])

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, x):
            return self.module.extract_feat(x)

    MODEL_WRAPPERS.register_module(module=Wrapper, name='TestWrapper')
    try:
        wrapped = Wrapper(model)
        with torch.no_grad(), MapRecorder(wrapped, 'neck.fpn1') as recorder:
            wrapped(torch.randn(1, 3, 64, 64))
    finally:
        del MODEL_WRAPPERS._module_dict['TestWrapper']
    recorder.check()
