"""mAP of segments: cases by hand, an independent count, and the joining of windows."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.registry import METRICS
from mmengine.structures import InstanceData

import kronattn_mm.registry  # noqa: F401  (registers the scope)
from kronattn_mm.evaluation.temporal_map import (
    average_precision,
    join_windows,
    mean_average_precision,
)
from kronattn_mm.models.temporal.structures import SegmentSample

THRESHOLDS = (0.1, 0.3, 0.5, 0.7)


def test_cases_by_hand():
    wanted = dict(a=np.array([[0.0, 10.0], [20.0, 30.0]]), b=np.array([[5.0, 15.0]]))
    exact = [('a', np.array([0.0, 10.0]), 0.9), ('a', np.array([20.0, 30.0]), 0.8)]
    last = ('b', np.array([5.0, 15.0]), 0.7)
    assert average_precision([*exact, last], wanted, (0.5, 1.0)).tolist() == [1, 1]
    assert average_precision(exact, wanted, (0.5,))[0] == pytest.approx(2 / 3)
    # The same action found twice: the second one is wrong.
    twice = [*exact, ('a', np.array([0.0, 10.0]), 0.75), last]
    assert average_precision(twice, wanted, (0.5,))[0] == pytest.approx((1 + 1 + 3 / 4) / 3)
    # A wrong one before the right ones; in another video; and with half of the overlap.
    wrong = ('b', np.array([40.0, 50.0]), 0.95)
    values = [
        average_precision([wrong, *exact, last], wanted, (0.5,), name)[0]
        for name in ('activitynet', 'thumos')
    ]
    assert values[0] == pytest.approx((3 / 4 + 3 / 4 + 3 / 4) / 3)
    assert values[1] == pytest.approx((1 / 2 + 2 / 3 + 3 / 4) / 3)
    half = [('b', np.array([5.0, 10.0]), 1.0)]
    assert average_precision(half, wanted, (0.49, 0.5, 0.51)).tolist() == [1 / 3, 1 / 3, 0]
    assert average_precision([], wanted, (0.5,)).tolist() == [0]
    assert average_precision([('c', np.array([5.0, 15.0]), 1.0)], wanted, (0.5,)).tolist() == [0]


def test_a_prediction_takes_the_next_best_where_the_best_is_taken():
    wanted = dict(a=np.array([[0.0, 10.0], [4.0, 14.0]]))
    found = [('a', np.array([0.0, 10.0]), 0.9), ('a', np.array([1.0, 11.0]), 0.8)]
    # The second overlaps more with the first (9 / 11), which is taken, than with the other (7/13).
    assert average_precision(found, wanted, (0.5,)).tolist() == [1]
    assert average_precision(found, wanted, (0.6,)).tolist() == [0.5]


def oracle(videos: dict, number: int, threshold: float, definition: str) -> float:
    """mAP in another way: one matrix of overlaps a class, recall and precision point by point."""
    values = []
    for label in range(number):
        truths = [
            (video, *segment)
            for video, part in videos.items()
            for segment, one in zip(part['truth']['segments'], part['truth']['labels'], strict=True)
            if one == label
        ]
        found = [
            (score, video, *segment)
            for video, part in videos.items()
            for segment, score, one in zip(
                part['segments'], part['scores'], part['labels'], strict=True
            )
            if one == label
        ]
        if not truths:
            continue
        found.sort(reverse=True)
        matrix = np.zeros((len(found), len(truths)))
        for row, (_, video, start, end) in enumerate(found):
            for column, (other, first, last) in enumerate(truths):
                if video == other:
                    common = max(0, min(end, last) - max(start, first))
                    matrix[row, column] = common / (max(end, last) - min(start, first))
                    if common == 0:
                        matrix[row, column] = 0
        points, right = [], 0
        for row in range(len(found)):
            column = matrix[row].argmax()
            if matrix[row, column] >= threshold:
                right += 1
                matrix[:, column] = -1
            points.append((right / len(truths), right / (row + 1)))
        area, before = 0.0, 0.0
        for place, (recall, precision) in enumerate(points):
            if definition == 'activitynet':
                precision = max(later for _, later in points[place:])
            area += (recall - before) * precision
            before = recall
        values.append(area)
    return float(np.mean(values))


@pytest.mark.parametrize('definition', ['activitynet', 'thumos'])
def test_equals_an_independent_count(definition: str):
    rng = np.random.default_rng(0)
    videos = {}
    for video in 'abcdef':
        truth = np.sort(rng.uniform(0, 60, (6, 2)), 1)
        found = np.sort(truth[rng.integers(6, size=40)] + rng.normal(0, 4, (40, 2)), 1)
        videos[video] = dict(
            truth=dict(segments=truth, labels=rng.integers(4, size=6)),
            segments=found,
            scores=rng.random(40),
            labels=rng.integers(5, size=40),  # class 4 is never true, and does not count
        )
    got = mean_average_precision(
        videos, {name: part['truth'] for name, part in videos.items()}, 5, THRESHOLDS, definition
    )
    wanted = [oracle(videos, 5, threshold, definition) for threshold in THRESHOLDS]
    np.testing.assert_allclose(got, wanted)
    assert 0 < got[-1] < got[0] < 1


def sample(video: str, start: int, segments: list, scores: list, labels: list) -> dict:
    """A window of 128 frames at 8 a second of a video of 192 frames, with predictions."""
    truth = dict(segments=np.array([[2.0, 6.0], [12.0, 20.0]]), labels=np.array([0, 1]))
    item = SegmentSample(
        metainfo=dict(
            video=video, window=(start, start + 128), fps=8.0, num_frames=192, truth=truth
        )
    )
    item.pred_instances = InstanceData(
        segments=torch.tensor(segments, dtype=torch.float32).reshape(-1, 2),
        scores=torch.tensor(scores),
        labels=torch.tensor(labels, dtype=torch.long),
    )
    return item.to_dict()


def test_windows_are_joined_in_seconds(tmp_path: Path):
    out = tmp_path / 'predictions.json'
    metric = METRICS.build(dict(type='kronattn_mm.TemporalMAP', out_file=str(out)))
    metric.dataset_meta = dict(classes=('spin', 'slide'))
    # Seen by the first window only; by both, whole by the second; and one of a wrong class.
    metric.process(None, [sample('a', 0, [[16, 48], [96, 128]], [0.9, 0.4], [0, 1])])
    metric.process(None, [sample('a', 64, [[32, 96], [32, 96]], [0.8, 0.7], [1, 0])])
    values = metric.evaluate(2)
    assert values['segments/mAP@0.7'] == 1
    assert sorted(values) == sorted(
        ['segments/mAP', *(f'segments/mAP@0.{digit}' for digit in range(1, 8))]
    )
    entries = json.loads(out.read_text())['results']['a']
    assert [(entry['label'], entry['segment']) for entry in entries] == [
        ('spin', [2, 6]),
        ('slide', [12, 20]),
        ('spin', [12, 20]),
    ]


def test_joining_keeps_the_best_of_a_class_and_cuts_at_the_end():
    from kronattn_mm.evaluation.temporal_map import window_result

    windows = [
        window_result(sample('a', 0, [[80, 128]], [0.5], [1])),
        window_result(sample('a', 64, [[16, 70]], [0.6], [1])),
        window_result(sample('b', 128, [[40, 128]], [0.3], [0])),
    ]
    videos = join_windows(windows, 0.4, 100)
    assert videos['a']['segments'].tolist() == [[10, 16.75]]
    assert videos['b']['segments'].tolist() == [[21, 24]]  # the video has 24 seconds
    assert len(join_windows(windows, 1.0, 1)['a']['scores']) == 1


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="definition must be one of 'activitynet', 'thumos', got"):
        METRICS.build(dict(type='kronattn_mm.TemporalMAP', definition='coco'))
    with pytest.raises(ValueError, match='iou_thresholds must be numbers above 0 and up to 1, got'):
        METRICS.build(dict(type='kronattn_mm.TemporalMAP', iou_thresholds=(0, 0.5)))
    for change, error, words in (
        (dict(iou_thresholds=0.5), TypeError, 'must be a list of numbers, got 0.5'),
        (dict(nms_iou=3), ValueError, 'nms_iou must lie between 0 and 1, got 3'),
        (dict(max_predictions=0), ValueError, 'max_predictions must be at least 1, got 0'),
    ):
        with pytest.raises(error, match=words):
            METRICS.build(dict(type='kronattn_mm.TemporalMAP', **change))
    empty = dict(segments=np.zeros((0, 2)), scores=np.zeros(0), labels=np.zeros(0, int))
    with pytest.raises(ValueError, match='no video of the subset has a true segment'):
        mean_average_precision(dict(a=empty), dict(a=empty), 2, (0.5,))
