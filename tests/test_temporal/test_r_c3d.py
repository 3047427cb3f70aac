"""R-C3D: its parts against what they are to be, and attention in it by ``Plugged``."""

import copy
import math

import pytest
import torch
from mmengine.registry import MODELS
from mmengine.structures import InstanceData
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, smooth_l1_loss
from torchvision.models import resnet50

import kronattn_mm.registry  # noqa: F401  (registers the scope)
from kronattn_mm import inserted_layers
from kronattn_mm.models.temporal.proposal_head import TemporalProposalHead
from kronattn_mm.models.temporal.resnet3d import ResNet3d, inflate
from kronattn_mm.models.temporal.segment_head import SegmentHead
from kronattn_mm.models.temporal.segments import anchor_segments, temporal_iou
from kronattn_mm.models.temporal.structures import SegmentSample

SMALL = dict(stage_blocks=(1, 1, 1, 1), base_channels=4, stem_kernel=(3, 3, 3))
ATTENTION = dict(type='kronattn_mm.EfficientAttention3d', key_channels=8, value_channels=8)


def model(plugged: bool = False, **changes) -> nn.Module:
    backbone = dict(SMALL, type='kronattn_mm.ResNet3d')
    if plugged:
        backbone.update(
            type='kronattn_mm.Plugged',
            base='kronattn_mm.ResNet3d',
            insert=[dict(at='res3-4', layer=ATTENTION)],
        )
    shared = changes.get('shared_stages', 3)
    config = dict(
        type='kronattn_mm.RC3D',
        data_preprocessor=dict(type='kronattn_mm.ClipPreprocessor'),
        backbone=backbone,
        proposal_head=dict(
            type='kronattn_mm.TemporalProposalHead',
            in_channels=64 * 2 ** (shared - 3),
            feat_channels=16,
            scales=(1, 2, 4),
            max_proposals=(30, 20),
        ),
        segment_head=dict(type='kronattn_mm.SegmentHead', in_channels=128, num_classes=3),
        pooled_size=(4, 2, 2),
    )
    torch.manual_seed(0)
    built = MODELS.build(dict(config, **changes))
    built.init_weights()
    return built


def batch(windows: int = 2) -> dict:
    truth = InstanceData(
        segments=torch.tensor([[4.0, 20.0], [24.0, 32.0]]), labels=torch.tensor([0, 2])
    )
    samples = []
    for index in range(windows):
        sample = SegmentSample(metainfo=dict(video=f'v{index}'))
        sample.gt_instances = truth[: 2 - index]  # the second window has one, a third none
        samples.append(sample)
    clips = [torch.randint(256, (3, 32, 32, 32), dtype=torch.uint8) for _ in range(windows)]
    return dict(inputs=clips, data_samples=samples)


def run(built: nn.Module, mode: str, data: dict):
    return built(**built.data_preprocessor(data, built.training), mode=mode)


def test_stages_are_those_of_resnet_50_with_time():
    net = ResNet3d().eval()
    wanted = 0
    for name, value in resnet50(weights=None).named_parameters():
        if not name.startswith('fc.'):
            wanted += value.numel() * (value.shape[-1] if value.dim() == 4 else 1)
    assert sum(parameter.numel() for parameter in net.parameters()) == wanted
    assert net.stage_channels == [256, 512, 1024, 2048]
    small = ResNet3d(**SMALL).eval()
    x = torch.randn(1, 3, 32, 48, 32)
    shapes = [tuple(small(x, last_stage=last).shape[1:]) for last in (1, 2, 3, 4)]
    assert shapes == [(16, 16, 12, 8), (32, 8, 6, 4), (64, 4, 3, 2), (128, 2, 2, 1)]
    assert [small.temporal_stride(last) for last in (1, 2, 3, 4)] == [2, 4, 8, 16]
    torch.testing.assert_close(small(small(x, last_stage=2), first_stage=3), small(x))


def test_a_clip_of_one_picture_gives_what_the_picture_gives():
    """Inflated weights: in the middle of a long still clip, where no padding in time reaches."""
    pictures = resnet50(weights=None)
    pictures.layer1, pictures.layer2 = pictures.layer1[:1], pictures.layer2[:1]
    for module in pictures.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
    clips = ResNet3d((1, 1), stem_kernel=(5, 7, 7)).eval()
    clips.load_state_dict(inflate(pictures.state_dict(), clips.state_dict()), strict=True)
    pictures.eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        y = pictures.maxpool(pictures.relu(pictures.bn1(pictures.conv1(x))))
        wanted = pictures.layer2(pictures.layer1(y))
        got = clips(x[:, :, None].expand(-1, -1, 33, -1, -1))
    torch.testing.assert_close(got[:, :, got.shape[2] // 2], wanted, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="the weights to inflate have no 'conv1.weight'"):
        inflate({}, clips.state_dict())
    wrong = dict(pictures.state_dict(), **{'conv1.weight': torch.zeros(64, 3, 3, 3)})
    with pytest.raises(ValueError, match=r"'conv1.weight' is \(64, 3, 3, 3\) in the weights"):
        inflate(wrong, clips.state_dict())


def test_inflated_weights_are_read_at_the_start(tmp_path):
    weights = {
        name: value[:, :, 0] * value.shape[2] if value.dim() == 5 else value
        for name, value in ResNet3d(**SMALL).state_dict().items()
    }
    torch.save(dict(state_dict=weights), tmp_path / 'pictures.pth')
    net = MODELS.build(
        dict(
            SMALL,
            type='kronattn_mm.Plugged',
            base='kronattn_mm.ResNet3d',
            insert=[dict(at='res3', layer=ATTENTION)],
            inflate_from=str(tmp_path / 'pictures.pth'),
        )
    )
    net.init_weights()
    kernel = net.layer1[0].conv2.weight
    torch.testing.assert_close(kernel[:, :, 1] * 3, weights['layer1.0.conv2.weight'])
    assert not net.attention.res3.reprojection.weight.any()  # attention starts as the identity


def test_freezing_norms_and_recomputation():
    net = ResNet3d(**SMALL, frozen_stages=2, norm_eval=True, with_cp=True)
    net.init_weights()
    net.train()
    x = torch.randn(2, 3, 16, 32, 32)
    net(x).square().mean().backward()
    trained = {
        name.split('.')[0] for name, value in net.named_parameters() if value.grad is not None
    }
    assert trained == {'layer3', 'layer4'}
    assert not any(item.training for item in net.modules() if isinstance(item, nn.BatchNorm3d))
    plain = ResNet3d(**SMALL, frozen_stages=2, norm_eval=True)
    plain.load_state_dict(net.state_dict())
    plain.train()
    plain(x).square().mean().backward()
    for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad)


def test_losses_of_proposals_equal_their_definition():
    """All anchors sampled: the sums of equation 1 written out, window by window."""
    torch.manual_seed(0)
    head = TemporalProposalHead(6, 8, scales=(1, 2), samples=1000)
    nn.init.normal_(head.score.weight, std=0.3)
    nn.init.normal_(head.regression.weight, std=0.3)
    x = torch.randn(2, 6, 4, 3, 3)
    truths = [
        InstanceData(segments=torch.tensor([[7.0, 16.5]])),
        InstanceData(segments=torch.zeros(0, 2)),
    ]
    losses, _ = head.loss_and_proposals(x, 8, truths)
    scores, answers = head(x)
    anchors = anchor_segments(4, 8, (1, 2))
    overlaps = temporal_iou(anchors, truths[0].segments)[:, 0]
    positive = (overlaps >= 0.7) | (overlaps == overlaps.max())
    used = positive | (overlaps < 0.3)
    logits = torch.cat([scores[0][used], scores[1]])
    targets = torch.cat([positive[used].float(), torch.zeros(8)])
    torch.testing.assert_close(
        losses['loss_proposal_score'], binary_cross_entropy_with_logits(logits, targets)
    )
    total = 0
    for anchor, answer in zip(anchors[positive], answers[0][positive], strict=True):
        length = anchor[1] - anchor[0]
        wanted = torch.stack([(23.5 - anchor.sum()) / 2 / length, (9.5 / length).log()])
        total = total + smooth_l1_loss(answer, wanted, reduction='sum')
    torch.testing.assert_close(losses['loss_proposal_segment'], total / positive.sum())


def test_proposals_are_inside_the_window_and_the_best_first():
    head = TemporalProposalHead(6, 8, scales=(1, 2, 8), nms_iou=(0.5, 0.7), max_proposals=(6, 5))
    nn.init.normal_(head.score.weight, std=0.3)
    x = torch.randn(1, 6, 4, 3, 3)
    head.train()
    _, (training,) = head.loss_and_proposals(x, 8, [InstanceData(segments=torch.zeros(0, 2))])
    head.eval()
    (testing,) = head.predict(x, 8)
    assert len(testing) <= 5
    for proposals, limit in ((training, 0.5), (testing, 0.7)):
        assert proposals.min() >= 0
        assert proposals.max() <= 32
        overlaps = temporal_iou(proposals, proposals).fill_diagonal_(0)
        assert overlaps.max() <= limit
        assert not proposals.requires_grad


def test_losses_of_classes_equal_their_definition():
    head = SegmentHead(5, 3)
    features = torch.randn(4, 5)
    labels = torch.tensor([1, 3, 0, 3])  # 3: background
    answers = torch.randn(4, 2)
    losses = head.loss(features, labels, answers)
    logits, regressed = head(features)
    torch.testing.assert_close(losses['loss_class'], cross_entropy(logits, labels))
    wanted = sum(
        smooth_l1_loss(regressed[row, label], answers[row], reduction='sum')
        for row, label in ((0, 1), (2, 0))
    )
    torch.testing.assert_close(losses['loss_segment'], wanted / 2)
    none = head.loss(features, torch.full((4,), 3), answers)
    assert none['loss_segment'] == 0
    sum(none.values()).backward()


def test_true_segments_are_learned_from_at_once():
    """The proposals of a young network are poor; true segments are among the chosen ones."""
    head = SegmentHead(5, 3, samples=4, positive_fraction=0.5)
    truth = InstanceData(segments=torch.tensor([[4.0, 20.0]]), labels=torch.tensor([2]))
    poor = torch.tensor([[40.0, 60.0], [41.0, 61.0], [42.0, 62.0], [43.0, 63.0]])
    chosen, labels, answers = head.sample([poor], [truth])
    assert labels.tolist() == [2, 3, 3, 3]
    assert chosen[0][0].tolist() == [4, 20]
    assert not answers.any()


def test_predictions_take_the_regression_of_their_class():
    head = SegmentHead(2, 2, target_stds=(1, 1), nms_iou=0.99, score_threshold=0.2)
    head.score.weight.data.zero_()
    head.score.bias.data = torch.tensor([1.0, 1.0, 0.0])
    head.regression.weight.data.zero_()
    head.regression.bias.data = torch.tensor([0.5, 0.0, 0.0, math.log(2)])
    (found,) = head.predict(torch.zeros(1, 2), [torch.tensor([[10.0, 20.0]])], frames=24)
    assert sorted(found.labels.tolist()) == [0, 1]
    by_class = dict(zip(found.labels.tolist(), found.segments.tolist(), strict=True))
    assert by_class[0] == [15, 24]  # moved by half a length, and cut at the window's end
    assert by_class[1] == pytest.approx([5, 24])  # twice as long
    assert found.scores.tolist() == pytest.approx([math.e / (2 * math.e + 1)] * 2)


@pytest.mark.parametrize('shared', [3, 4])
def test_attention_keeps_keys_and_values_and_then_trains(shared: int):
    plain = model(shared_stages=shared)
    plugged = model(plugged=True, shared_stages=shared)
    assert sorted(inserted_layers(plugged)) == ['backbone.res3', 'backbone.res4']
    loaded = plugged.load_state_dict(plain.state_dict(), strict=False)
    assert not loaded.unexpected_keys
    assert {name.rsplit('.', 2)[0] for name in loaded.missing_keys} == {
        'backbone.attention.res3',
        'backbone.attention.res4',
    }
    data = batch()
    for built in (plain, plugged):
        built.eval()
    with torch.no_grad():
        one, other = (run(built, 'predict', copy.deepcopy(data)) for built in (plain, plugged))
    for mine, theirs in zip(one, other, strict=True):  # bit for bit before the first step
        assert torch.equal(mine.pred_instances.segments, theirs.pred_instances.segments)
        assert torch.equal(mine.pred_instances.scores, theirs.pred_instances.scores)
    plugged.train()
    for insertion in inserted_layers(plugged).values():
        nn.init.normal_(insertion.layer.reprojection.weight, std=0.1)
    losses = run(plugged, 'loss', data)
    assert sorted(losses) == [
        'loss_class',
        'loss_proposal_score',
        'loss_proposal_segment',
        'loss_segment',
    ]
    sum(losses.values()).backward()
    idle = [
        name
        for name, value in plugged.named_parameters()
        if value.requires_grad and (value.grad is None or not value.grad.any())
    ]
    # The bias of the keys cancels in their softmax.
    assert [name for name in idle if not name.endswith('keys.bias')] == []


@pytest.mark.parametrize('shared', [3, 4])
def test_attention_after_the_last_stage_sees_proposals_or_windows(shared: int):
    built = model(plugged=True, shared_stages=shared).eval()
    seen = {}

    def note(layer: nn.Module, args: tuple, output: torch.Tensor) -> None:
        seen[layer.in_channels] = tuple(output.shape)

    for insertion in inserted_layers(built).values():
        insertion.layer.register_forward_hook(note)
    with torch.no_grad():
        run(built, 'predict', batch())
    assert seen[64] == (2, 64, 4, 2, 2)  # windows of 32 frames
    assert seen[128][1:] == (128, 2, 1, 1)
    assert (seen[128][0] > 2) == (shared == 3)


def test_windows_without_an_action_and_without_a_proposal():
    built = model()
    losses = run(built.train(), 'loss', batch(3))
    assert all(torch.isfinite(value) for value in losses.values())
    empty = batch(1)
    empty['data_samples'][0].gt_instances = InstanceData(
        segments=torch.zeros(0, 2), labels=torch.zeros(0, dtype=torch.long)
    )
    losses = run(built, 'loss', empty)
    assert losses['loss_segment'] == losses['loss_proposal_segment'] == 0
    sum(losses.values()).backward()
    none = built.segment_head.loss(torch.zeros(0, 128), torch.zeros(0).long(), torch.zeros(0, 2))
    assert none['loss_class'] == none['loss_segment'] == 0
    built.eval()
    # Every anchor shrinks to nothing: no proposal is left, and nothing is found.
    built.proposal_head.regression.bias.data[1::2] = -50
    with torch.no_grad():
        (sample, _) = run(built, 'predict', batch())
    assert len(sample.pred_instances.segments) == 0


def test_mistakes_are_named():
    built = model()
    short = dict(inputs=[torch.zeros(3, 20, 32, 32, dtype=torch.uint8)], data_samples=None)
    with pytest.raises(ValueError, match='windows must have a multiple of 8 frames, .* got 20'):
        run(built, 'tensor', short)
    two = [torch.zeros(3, frames, 32, 32, dtype=torch.uint8) for frames in (16, 32)]
    with pytest.raises(ValueError, match=r'must have the same length and size, got \(3, 16, 32'):
        built.data_preprocessor(dict(inputs=two))
    with pytest.raises(ValueError, match="mode must be 'loss', 'predict' or 'tensor', got 'train'"):
        run(built, 'train', batch())
    with pytest.raises(ValueError, match='shared_stages must be from 1 to 4, .* got 5'):
        model(shared_stages=5)
    with pytest.raises(ValueError, match='negative_iou <= positive_iou <= 1, got negative_iou=0.6'):
        SegmentHead(4, 2, negative_iou=0.6)
    with pytest.raises(ValueError, match='scales must be numbers above 0'):
        TemporalProposalHead(4, scales=(0, 1))
    with pytest.raises(ValueError, match='stem_kernel must be three odd numbers'):
        ResNet3d(stem_kernel=(3, 4, 4))
    with pytest.raises(ValueError, match="did you mean 'res4'"):
        MODELS.build(
            dict(
                SMALL,
                type='kronattn_mm.Plugged',
                base='kronattn_mm.ResNet3d',
                insert=[dict(at='res5', layer=ATTENTION)],
            )
        )
