"""Mean average precision of segments at overlaps in time, and the joining of windows before it.

A prediction counts as right if its overlap in time with a true segment of its class that is not
taken yet reaches the threshold; predictions are asked in the order of their scores, over all
videos, and each takes the free one that it overlaps most with. From precision and recall after each
of them there are two averages in use:

    'activitynet'   area under the curve whose precision at a recall is the highest at that recall
                    or a higher one (ActivityNet's evaluation)
    'thumos'        mean of the precisions at the right predictions, over all true segments
                    (THUMOS14's evaluation kit)

THUMOS14's kit also lets a true segment choose its prediction by overlap and forgives predictions on
ambiguous stretches. Neither is done here. mAP is the mean over the classes that the subset has.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.evaluator import BaseMetric

from ..layers.arguments import choice, positive_int
from ..models.temporal.segments import temporal_nms
from ..registry import METRICS

DEFINITIONS = ('activitynet', 'thumos')


@METRICS.register_module()
class TemporalMAP(BaseMetric):
    """mAP at several overlaps; predictions of overlapping windows are joined first.

    Args:
        iou_thresholds (Sequence[float]): Overlaps. Defaults to those of the paper's table 6, 0.1 to
            0.7.
        definition (str): ``'activitynet'`` or ``'thumos'``; see above. Defaults to
            ``'activitynet'``.
        nms_iou (float): Of predictions of a class that overlap by more, the best stays, over all
            windows of a video. Defaults to 0.4.
        max_predictions (int): Most predictions of a video. Defaults to 200.
        out_file (str, optional): Where to write the predictions in ActivityNet's form, with times
            in seconds. Defaults to None, nowhere.
        collect_device (str): See mmengine's BaseMetric. Defaults to ``'cpu'``.
        prefix (str): Before the names of the results. Defaults to ``'segments'``.

    Raises:
        TypeError: If the thresholds are no list, or ``max_predictions`` is no integer.
        ValueError: If there are no thresholds between 0 and 1, the definition is unknown,
            ``nms_iou`` is no share, or ``max_predictions`` is below 1.
    """

    def __init__(
        self,
        iou_thresholds: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7),
        definition: str = 'activitynet',
        nms_iou: float = 0.4,
        max_predictions: int = 200,
        out_file: str | None = None,
        collect_device: str = 'cpu',
        prefix: str = 'segments',
    ) -> None:
        super().__init__(collect_device, prefix)
        if not isinstance(iou_thresholds, Sequence):
            raise TypeError(f'iou_thresholds must be a list of numbers, got {iou_thresholds!r}')
        if not iou_thresholds or not all(0 < threshold <= 1 for threshold in iou_thresholds):
            raise ValueError(
                f'iou_thresholds must be numbers above 0 and up to 1, got {iou_thresholds!r}'
            )
        self.iou_thresholds = tuple(iou_thresholds)
        self.definition = choice('definition', definition, DEFINITIONS)
        if not 0 <= nms_iou <= 1:
            raise ValueError(f'nms_iou must lie between 0 and 1, got {nms_iou!r}')
        self.nms_iou = nms_iou
        self.max_predictions = positive_int('max_predictions', max_predictions)
        self.out_file = out_file

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Keep the predictions of some windows; see ``SegmentSample``."""
        self.results += [window_result(sample) for sample in data_samples]

    def compute_metrics(self, results: list[dict]) -> dict[str, float]:
        """Return ``mAP@<overlap>`` for each threshold, ``mAP``, their mean, all from 0 to 1."""
        classes = self.dataset_meta['classes']
        videos = join_windows(results, self.nms_iou, self.max_predictions)
        if self.out_file is not None:
            write_predictions(self.out_file, videos, classes)
        truths = {video: joined['truth'] for video, joined in videos.items()}
        values = mean_average_precision(
            videos, truths, len(classes), self.iou_thresholds, self.definition
        )
        named = {
            f'mAP@{threshold:g}': float(value)
            for threshold, value in zip(self.iou_thresholds, values, strict=True)
        }
        return dict(named, mAP=float(np.mean(values)))


def window_result(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return a window's predictions in seconds of its video, as numpy arrays.

    Args:
        sample (Mapping): A ``SegmentSample`` as a dict.

    Returns:
        dict: ``video``, ``truth`` (of the whole video), ``segments`` ``(n, 2)``, ``scores`` and
        ``labels`` ``(n,)``.
    """
    predictions = {
        name: np.asarray(sample['pred_instances'][name].detach().cpu())
        for name in ('segments', 'scores', 'labels')
    }
    segments = (predictions['segments'] + sample['window'][0]) / sample['fps']
    # A window may be longer than its video.
    segments = segments.clip(0, sample['num_frames'] / sample['fps'])
    return dict(predictions, video=sample['video'], truth=sample['truth'], segments=segments)


def join_windows(
    results: Sequence[dict], nms_iou: float, max_predictions: int
) -> dict[str, dict[str, Any]]:
    """Join the windows of each video; of predictions that overlap the best stays, class by class.

    Args:
        results (Sequence[dict]): From :func:`window_result`.
        nms_iou (float): Overlap above which the worse of two goes.
        max_predictions (int): Most predictions of a video, the best ones.

    Returns:
        dict[str, dict]: For each video ``truth``, ``segments``, ``scores`` and ``labels``, the best
        first.
    """
    windows = defaultdict(list)
    for result in results:
        windows[result['video']].append(result)
    videos = {}
    for video, parts in windows.items():
        segments, scores, labels = (
            np.concatenate([part[name] for part in parts])
            for name in ('segments', 'scores', 'labels')
        )
        kept = temporal_nms(
            torch.from_numpy(segments), torch.from_numpy(scores), nms_iou, torch.from_numpy(labels)
        )[:max_predictions].numpy()
        videos[video] = dict(
            truth=parts[0]['truth'],
            segments=segments[kept],
            scores=scores[kept],
            labels=labels[kept],
        )
    return videos


def mean_average_precision(
    predictions: Mapping[str, dict],
    truths: Mapping[str, dict],
    num_classes: int,
    iou_thresholds: Sequence[float],
    definition: str = 'activitynet',
) -> np.ndarray:
    """Return the mean over the classes of :func:`average_precision`, one for each threshold.

    Args:
        predictions (Mapping[str, dict]): ``segments``, ``scores`` and ``labels`` of each video.
        truths (Mapping[str, dict]): ``segments`` and ``labels`` of each video.
        num_classes (int): How many classes there are; those without a true segment do not count.
        iou_thresholds (Sequence[float]): Overlaps, ``(t,)``.
        definition (str): See above. Defaults to ``'activitynet'``.

    Raises:
        ValueError: If there is no true segment at all.
    """
    values = []
    for label in range(num_classes):
        wanted = {
            video: truth['segments'][truth['labels'] == label] for video, truth in truths.items()
        }
        if not any(map(len, wanted.values())):
            continue
        found = [
            (video, segment, score)
            for video, part in predictions.items()
            for segment, score in zip(
                part['segments'][part['labels'] == label],
                part['scores'][part['labels'] == label],
                strict=True,
            )
        ]
        values.append(average_precision(found, wanted, iou_thresholds, definition))
    if not values:
        raise ValueError('no video of the subset has a true segment, so there is no mAP')
    return np.mean(values, 0)


def average_precision(
    found: Sequence[tuple[str, np.ndarray, float]],
    wanted: Mapping[str, np.ndarray],
    iou_thresholds: Sequence[float],
    definition: str = 'activitynet',
) -> np.ndarray:
    """Return the average precision of one class for each threshold.

    Args:
        found (Sequence[tuple]): Video, segment ``(2,)`` and score of each prediction.
        wanted (Mapping[str, np.ndarray]): True segments of each video, ``(n, 2)``.
        iou_thresholds (Sequence[float]): Overlaps, ``(t,)``.
        definition (str): ``'activitynet'`` or ``'thumos'``. Defaults to ``'activitynet'``.

    Returns:
        np.ndarray: ``(t,)``, from 0 to 1.
    """
    number = sum(map(len, wanted.values()))
    found = sorted(found, key=lambda prediction: -prediction[2])
    right = np.zeros((len(iou_thresholds), len(found)), bool)
    free = [{video: [True] * len(truth) for video, truth in wanted.items()} for _ in right]
    for column, (video, segment, _) in enumerate(found):
        truth = wanted.get(video, ())
        if not len(truth):
            continue
        overlaps = _overlaps(segment, truth)
        for row, threshold in enumerate(iou_thresholds):
            for index in np.argsort(-overlaps, kind='stable'):
                if overlaps[index] < threshold:
                    break
                if free[row][video][index]:
                    free[row][video][index] = False
                    right[row, column] = True
                    break
    precision = right.cumsum(1) / np.arange(1, len(found) + 1)
    if definition == 'activitynet':  # the highest at this recall or a higher one
        precision = np.maximum.accumulate(precision[:, ::-1], 1)[:, ::-1]
    return (precision * right).sum(1) / number


def _overlaps(segment: np.ndarray, truth: np.ndarray) -> np.ndarray:
    common = np.minimum(segment[1], truth[:, 1]) - np.maximum(segment[0], truth[:, 0])
    common = common.clip(min=0)
    union = segment[1] - segment[0] + truth[:, 1] - truth[:, 0] - common
    return common / np.maximum(union, 1e-6)


def write_predictions(path: str, videos: Mapping[str, dict], classes: Sequence[str]) -> None:
    """Write joined predictions as ActivityNet's evaluation takes them; times in seconds."""
    from ..visualization.report import write_text

    results = {
        video: [
            dict(label=classes[label], score=float(score), segment=[float(t) for t in segment])
            for segment, score, label in zip(
                part['segments'], part['scores'], part['labels'], strict=True
            )
        ]
        for video, part in videos.items()
    }
    write_text(Path(path), json.dumps(dict(version='1.3', results=results, external_data={})))
