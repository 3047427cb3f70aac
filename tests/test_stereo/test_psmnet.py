"""PSMNet as a whole: its size, odd pictures, what it learns, and attention in it."""

import copy
import math

import pytest
import torch
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement

from kronattn_mm import attention_status, inserted_layers, insertion_shapes, unplug
from kronattn_mm.cost.report import cost_report
from kronattn_mm.models.stereo.disparity_head import DisparityHead

ATTENTION = dict(type='kronattn_mm.EfficientAttention3d', key_channels=4, value_channels=4)


def full_config() -> dict:
    return dict(
        type='kronattn_mm.PSMNet',
        backbone=dict(type='kronattn_mm.PSMFeatures'),
        neck=dict(type='kronattn_mm.PSMAggregation'),
        head=dict(type='kronattn_mm.DisparityHead'),
        data_preprocessor=dict(type='kronattn_mm.StereoDataPreprocessor'),
    )


def small_config(insert: list | None = None, planes: int = 4) -> dict:
    neck = dict(type='kronattn_mm.PSMAggregation', in_channels=16, channels=8, planes=planes)
    if insert is not None:
        neck.update(type='kronattn_mm.Plugged', base='kronattn_mm.PSMAggregation', insert=insert)
    return dict(
        type='kronattn_mm.PSMNet',
        backbone=dict(
            type='kronattn_mm.PSMFeatures',
            base_channels=8,
            out_channels=8,
            blocks=(1, 1, 1, 1),
            windows=(8, 4),
        ),
        neck=neck,
        head=dict(type='kronattn_mm.DisparityHead', channels=8, max_disparity=4 * planes),
        data_preprocessor=dict(type='kronattn_mm.StereoDataPreprocessor', pad_size_divisor=4),
    )


def sample(truth: torch.Tensor) -> BaseDataElement:
    return BaseDataElement(metainfo=dict(img_shape=tuple(truth.shape)), gt_disparity=truth)


def test_it_has_the_parameters_of_the_authors_network():
    model = MODELS.build(full_config())
    assert sum(parameter.numel() for parameter in model.parameters()) == 5_224_768


def test_memory_of_table_7_for_both_kinds_of_attention():
    """796 MB and 9.68 TB, at 960 x 540 and disparities below 192."""
    config = full_config()
    neck = dict(type='kronattn_mm.Plugged', base='kronattn_mm.PSMAggregation')
    efficient = dict(ATTENTION, key_channels=16, value_channels=16)
    for layer, memory, printed in (
        (efficient, 796_263_424, '796 MB'),
        (dict(type='kronattn_mm.NonLocal3d', reduction=2), 9_675_384_422_400, '9.68 TB'),
    ):
        config['neck'] = dict(neck, insert=[dict(at='out2', layer=layer)])
        (report,) = cost_report(MODELS.build(config), (540, 960)).layers
        assert report.shape == (1, 32, 48, 135, 240)
        assert report.paper.memory == memory, printed


@pytest.mark.parametrize('size', [(32, 48), (33, 47), (17, 50), (4, 16), (1, 1)])
def test_any_size_gives_disparities_of_that_size(size):
    model = MODELS.build(small_config([dict(at='out2', layer=ATTENTION)], planes=3)).eval()
    volumes = model.extract_feat(torch.randn(1, 2, 3, *size))
    quarter = tuple(math.ceil(side / 4) for side in size)
    assert [tuple(volume.shape) for volume in volumes] == [(1, 8, 3, *quarter)] * 3
    samples = [sample(torch.zeros(size))]
    with torch.no_grad():
        (result,) = model(torch.randn(1, 2, 3, *size), samples, mode='predict')
    assert result.pred_disparity.shape == size
    assert 0 <= result.pred_disparity.min() <= result.pred_disparity.max() <= 11


def test_the_three_losses_against_their_definition():
    head = DisparityHead(channels=4, max_disparity=12)
    volumes = [torch.randn(2, 4, 3, 3, 4) for _ in range(3)]
    truth = torch.rand(2, 10, 15) * 16  # some beyond the largest disparity
    truth[0, :3] = float('nan')
    losses = head.loss(volumes, truth)
    costs = head(volumes)
    for number, (cost, weight) in enumerate(zip(costs, (0.5, 0.7, 1.0), strict=True), 1):
        disparity = head.disparities(cost, (10, 15)).detach()
        total, count = 0.0, 0
        for index in range(2):
            for y in range(10):
                for x in range(15):
                    value = float(truth[index, y, x])
                    if not value < 12:
                        continue
                    error = abs(float(disparity[index, y, x]) - value)
                    total += 0.5 * error**2 if error < 1 else error - 0.5
                    count += 1
        assert float(losses[f'loss_disparity{number}']) == pytest.approx(
            weight * total / count, rel=1e-5
        )
    assert torch.equal(costs[1], head.costs2(volumes[1]) + costs[0])


def test_costs_are_enlarged_as_trilinear_interpolation_does():
    head = DisparityHead(channels=4, max_disparity=12)
    costs = torch.randn(2, 1, 3, 4, 5)
    fine = torch.nn.functional.interpolate(costs, scale_factor=4, mode='trilinear').squeeze(1)
    shares = torch.softmax(-fine, 1)
    wanted = (shares * torch.arange(12.0).view(12, 1, 1)).sum(1)
    torch.testing.assert_close(head.disparities(costs, (16, 20)), wanted)
    torch.testing.assert_close(head.disparities(costs, (13, 18)), wanted[:, :13, :18])


def test_a_batch_without_any_truth_trains_to_zero_and_stays_finite():
    model = MODELS.build(small_config())
    truth = torch.full((16, 32), float('nan'))
    losses = model(torch.randn(2, 2, 3, 16, 32), [sample(truth)] * 2, mode='loss')
    total = sum(value for key, value in losses.items() if 'loss' in key)
    total.backward()
    assert float(total) == 0
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_keys_with_and_without_attention():
    plain = MODELS.build(small_config())
    plugged = MODELS.build(small_config([dict(at='out2', layer=ATTENTION)]))
    added = set(plugged.state_dict()) - set(plain.state_dict())
    assert set(plain.state_dict()) < set(plugged.state_dict())
    assert added and all(key.startswith('neck.attention.out2.') for key in added)
    # The trained plain network goes on computing what it did, bit by bit.
    plugged.load_state_dict(plain.state_dict(), strict=False)
    pairs = torch.randn(1, 2, 3, 24, 40)
    for model in (plain, plugged):
        model.eval()
    with torch.no_grad():
        for mine, theirs in zip(plain(pairs), plugged(pairs), strict=True):
            assert torch.equal(mine, theirs)
    unplug(plugged)
    assert set(plugged.state_dict()) == set(plain.state_dict())


def test_attention_is_after_the_last_hourglass_and_starts_at_zero():
    model = MODELS.build(small_config([dict(at='out2', layer=ATTENTION)]))
    model.init_weights()
    assert list(inserted_layers(model)) == ['neck.out2']
    assert model.neck.attention.out2.reprojection.weight.abs().max() == 0
    assert float(model.backbone.stem[0].weight.detach().std()) == pytest.approx(
        (2 / (9 * 8)) ** 0.5, rel=0.2
    )
    torch.nn.init.normal_(model.neck.attention.out2.reprojection.weight)
    before = copy.deepcopy(model)
    unplug(before)
    pairs = torch.randn(1, 2, 3, 16, 32)
    changed = model.eval().extract_feat(pairs)
    plain = before.eval().extract_feat(pairs)
    assert torch.equal(changed[0], plain[0]) and torch.equal(changed[1], plain[1])
    assert not torch.allclose(changed[2], plain[2])


def test_tools_see_the_shape_of_a_volume():
    model = MODELS.build(small_config([dict(at='out2', layer=ATTENTION)]))
    assert insertion_shapes(model, (30, 50)) == {'neck.out2': (1, 8, 4, 8, 13)}
    (row,) = attention_status(model, (30, 50))
    positions = 4 * 8 * 13
    assert row.macs == positions * (8 * 16 + 2 * 16)  # n d (2 d_k + 2 d_v) + 2 n d_k d_v


@pytest.mark.parametrize('at', ['hourglass3.up2', 'hourglass1.down1', 'stem'])
def test_attention_fits_inside_too(at):
    model = MODELS.build(small_config([dict(at=at, layer=ATTENTION)]))
    losses = model(torch.randn(2, 2, 3, 16, 32), [sample(torch.rand(16, 32) * 10)] * 2, mode='loss')
    sum(value for key, value in losses.items() if 'loss' in key).backward()
    (insertion,) = inserted_layers(model).values()
    assert insertion.layer.reprojection.weight.grad.abs().max() > 0


def test_pairs_are_normalised_alike_and_padded_at_the_end():
    preprocessor = MODELS.build(
        dict(type='kronattn_mm.StereoDataPreprocessor', pad_size_divisor=16)
    )
    blue_first = torch.zeros(2, 3, 5, 20, dtype=torch.uint8)
    blue_first[:, 0] = 10
    blue_first[:, 2] = 200
    data = preprocessor(dict(inputs=[blue_first], data_samples=[sample(torch.zeros(5, 20))]))
    assert data['inputs'].shape == (1, 2, 3, 16, 32)
    red, _, blue = data['inputs'][0, 1, :, 0, 0].tolist()
    assert red == pytest.approx((200 - 123.675) / 58.395, rel=1e-5)
    assert blue == pytest.approx((10 - 103.53) / 57.375, rel=1e-5)
    assert data['inputs'][0, :, :, 5:].abs().max() == 0
    assert data['inputs'][0, :, :, :, 20:].abs().max() == 0
    assert data['data_samples'][0].batch_input_shape == (16, 32)
    assert not preprocessor.state_dict()


@pytest.mark.parametrize(
    ('part', 'change', 'message'),
    [
        ('head', dict(max_disparity=18), 'multiple of 4, got 18; the nearest is 16'),
        ('head', dict(max_disparity=32), 'planes=4 and the head max_disparity=32.*must be 8'),
        ('head', dict(loss_weights=(1, 2)), 'three numbers'),
        ('head', dict(loss_weights=('a', 1, 1)), 'loss_weights must be a number'),
        ('neck', dict(in_channels=15), 'an even number, got 15'),
        ('neck', dict(planes=0), 'planes must be at least 1, got 0'),
        ('backbone', dict(blocks=(1, 2)), 'four numbers'),
        ('backbone', dict(base_channels=1.5), 'base_channels must be an integer, got 1.5'),
        ('data_preprocessor', dict(mean=(1, 2)), 'mean must be three numbers'),
    ],
)
def test_bad_arguments_are_named(part, change, message):
    config = small_config()
    config[part].update(change)
    with pytest.raises((ValueError, TypeError), match=message):
        MODELS.build(config)


def test_bad_inputs_are_named():
    model = MODELS.build(small_config())
    with pytest.raises(ValueError, match=r'pairs must be \(N, 2, 3, H, W\), got \(1, 3, 3, 8, 8\)'):
        model(torch.zeros(1, 3, 3, 8, 8))
    with pytest.raises(ValueError, match="mode must be 'loss', 'predict' or 'tensor', got 'los'"):
        model(torch.zeros(1, 2, 3, 8, 8), mode='los')
    with pytest.raises(ValueError, match="mode='loss' needs data_samples"):
        model(torch.zeros(2, 2, 3, 8, 8), mode='loss')
    with pytest.raises(ValueError, match=r'has the shape \(8, 9\), the views \(8, 8\)'):
        model(torch.zeros(2, 2, 3, 8, 8), [sample(torch.ones(8, 9))] * 2, mode='loss')
    with pytest.raises(ValueError, match='a window of 4 leaves one average of a map of 2 x 2'):
        model(torch.zeros(1, 2, 3, 8, 8))
    assert len(model.eval()(torch.zeros(1, 2, 3, 8, 8))) == 3
