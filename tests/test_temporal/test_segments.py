"""Segments of time against loops: overlap, suppression, regression, assignment, pooling."""

import math

import pytest
import torch

from kronattn_mm.models.temporal.roi_pool import temporal_roi_pool
from kronattn_mm.models.temporal.segments import (
    anchor_segments,
    assign_segments,
    decode_segments,
    encode_segments,
    sample_segments,
    temporal_iou,
    temporal_nms,
)


def segments(number: int, longest: float = 100.0) -> torch.Tensor:
    return (torch.rand(number, 2) * longest).sort(1).values + torch.tensor([0.0, 0.5])


def overlap(first: torch.Tensor, second: torch.Tensor) -> float:
    """The overlap of two segments as the definition has it."""
    common = max(0.0, min(first[1], second[1]) - max(first[0], second[0]))
    return float(common / (max(0.0, first[1] - first[0]) + second[1] - second[0] - common))


def test_overlap_equals_its_definition():
    first, second = segments(7), segments(5)
    wanted = torch.tensor([[overlap(one, other) for other in second] for one in first])
    torch.testing.assert_close(temporal_iou(first, second), wanted)
    assert temporal_iou(torch.tensor([[0.0, 4.0]]), torch.tensor([[4.0, 8.0]])) == 0
    assert temporal_iou(torch.tensor([[3.0, 3.0]]), torch.tensor([[3.0, 3.0]])) == 0


@pytest.mark.parametrize('classes', [1, 3])
def test_suppression_keeps_the_best_of_those_that_overlap(classes: int):
    given, scores = segments(60), torch.rand(60)
    labels = torch.randint(classes, (60,))
    kept: list[int] = []
    for index in scores.argsort(descending=True).tolist():
        if all(
            labels[index] != labels[other] or overlap(given[index], given[other]) <= 0.4
            for other in kept
        ):
            kept.append(index)
    assert temporal_nms(given, scores, 0.4, labels).tolist() == kept
    assert len(kept) < 60


def test_anchors_are_centred_on_the_frames_of_their_position():
    anchors = anchor_segments(3, 8, (1, 2.5))
    assert anchors.tolist() == [[0, 8], [-6, 14], [8, 16], [2, 22], [16, 24], [10, 30]]


def test_regression_is_that_of_the_paper_and_is_undone():
    origins, targets = segments(20), segments(20)
    answers = encode_segments(origins, targets, (0.1, 0.2))
    for origin, target, answer in zip(origins.tolist(), targets.tolist(), answers, strict=True):
        length = origin[1] - origin[0]
        shift = (sum(target) - sum(origin)) / 2 / length
        assert answer[0] == pytest.approx(shift / 0.1, rel=1e-4, abs=1e-4)
        factor = math.log((target[1] - target[0]) / length)
        assert answer[1] == pytest.approx(factor / 0.2, rel=1e-4, abs=1e-4)
    stretched = (targets[:, 1] - targets[:, 0]) > 16 * (origins[:, 1] - origins[:, 0])
    again = decode_segments(origins, answers, (0.1, 0.2))
    torch.testing.assert_close(again[~stretched], targets[~stretched], rtol=1e-4, atol=1e-3)
    cut = decode_segments(origins, answers, (0.1, 0.2), frames=50)
    assert cut.min() >= 0
    assert cut.max() <= 50
    wild = decode_segments(origins, torch.full((20, 2), 1e4))
    assert wild.isfinite().all()  # a wild answer of a young network stays finite


def test_assignment_follows_its_rules():
    truths = torch.tensor([[0.0, 10.0], [20.0, 60.0], [90.0, 91.0]])
    candidates = torch.tensor(
        [
            [0.0, 9.0],  # overlap 0.9 with the first
            [0.0, 20.0],  # 0.5: of no use
            [12.0, 18.0],  # none
            [30.0, 50.0],  # 0.5 with the second and its best: positive by that
            [85.0, 95.0],  # 0.1 with the third and its best
        ]
    )
    best = assign_segments(candidates, truths, 0.7, 0.3, best_for_each=True)
    assert best.tolist() == [0, -2, -1, 1, 2]
    plain = assign_segments(candidates, truths, 0.7, 0.3, best_for_each=False)
    assert plain.tolist() == [0, -2, -1, -2, -1]
    nothing = assign_segments(candidates, truths[:0], 0.7, 0.3, best_for_each=True)
    assert nothing.tolist() == [-1] * 5


def test_best_candidate_is_nobodys_where_nothing_overlaps():
    far = torch.tensor([[500.0, 600.0]])
    assigned = assign_segments(segments(4), far, 0.7, 0.3, best_for_each=True)
    assert assigned.tolist() == [-1] * 4


def test_sample_has_its_share_and_no_unused_candidate():
    assigned = torch.tensor([-2] * 50 + [0] * 30 + [-1] * 60)
    chosen = sample_segments(assigned, 32, 0.25)
    assert len(chosen) == len(set(chosen.tolist())) == 32
    assert (assigned[chosen] >= 0).tolist() == [True] * 8 + [False] * 24
    few = sample_segments(torch.tensor([-2, 1, -1, -1]), 32, 0.5)
    assert few.tolist() == [1, 2, 3]


@pytest.mark.parametrize('size', [(4, 2, 2), (3, 1, 2), (8, 3, 3)])
def test_pooling_equals_maxima_of_pieces(size: tuple[int, int, int]):
    """Loops over windows, proposals, channels and pieces; odd sizes, and proposals at the edges."""
    features = torch.randn(2, 3, 7, 5, 3)
    given = [
        torch.tensor([[0.0, 56.0], [9.0, 10.0], [50.5, 56.0], [15.9, 33.0]]),
        torch.tensor([[56.0, 56.0], [-4.0, 3.0]]),
    ]

    def pieces(first: int, stop: int, number: int) -> list[tuple[int, int]]:
        length = stop - first
        return [
            (first + index * length // number, first - (-(index + 1) * length // number))
            for index in range(number)
        ]

    rows = []
    for window, proposals in enumerate(given):
        for start, end in proposals.tolist():
            first = min(max(math.floor(start / 8), 0), 6)
            stop = max(min(math.ceil(end / 8), 7), first + 1)
            row = torch.zeros(3, *size)
            for i, (t0, t1) in enumerate(pieces(first, stop, size[0])):
                for j, (y0, y1) in enumerate(pieces(0, 5, size[1])):
                    for k, (x0, x1) in enumerate(pieces(0, 3, size[2])):
                        for channel in range(3):
                            part = features[window, channel, t0:t1, y0:y1, x0:x1]
                            row[channel, i, j, k] = part.max()
            rows.append(row)
    torch.testing.assert_close(temporal_roi_pool(features, given, 8, size), torch.stack(rows))


def test_pooling_passes_gradients_and_takes_no_proposals():
    features = torch.randn(2, 3, 6, 4, 4, requires_grad=True)
    none = [torch.zeros(0, 2), torch.zeros(0, 2)]
    assert temporal_roi_pool(features, none, 8, (2, 2, 2)).shape == (0, 3, 2, 2, 2)
    one = [torch.tensor([[8.0, 24.0]]), torch.zeros(0, 2)]
    temporal_roi_pool(features, one, 8, (2, 2, 2)).sum().backward()
    touched = features.grad.abs().sum((1, 3, 4)) > 0
    assert touched.tolist() == [[False, True, True, False, False, False], [False] * 6]
    with pytest.raises(ValueError, match='2 windows need as many sets of proposals, got 1'):
        temporal_roi_pool(features, one[:1], 8, (2, 2, 2))
