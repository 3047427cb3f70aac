"""What mAP comes of knowing nothing: chance as a measure of a temporal localiser.

Every held-out video gets segments at random. Their number is the same for each, their lengths are
those of true segments of another subset, their classes are as frequent as there, scores are random.
With predictions of a trained model, the same with their labels drawn anew instead, the segments and
scores kept: what is left when only the classes are unknown.

Predictions are joined class by class as those of a model are, and the mean over several draws is
reported with its standard deviation.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..cost.command_line import Parser, positive_integer
from ..datasets.untrimmed_videos import AMBIGUOUS, read_database
from .temporal_map import DEFINITIONS, join_windows, mean_average_precision

EXAMPLE = """python tools/analysis_tools/temporal_chance.py data/action_clips/annotations.json \\
      --known training --asked validation"""
_THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)


def random_predictions(
    rng: np.random.Generator,
    known: Sequence[dict[str, Any]],
    asked: dict[str, dict[str, Any]],
    classes: Sequence[str],
    number: int,
) -> list[dict[str, Any]]:
    """Draw segments for each video that have the lengths and classes of known ones.

    Args:
        rng (np.random.Generator): Source of every draw.
        known (Sequence[dict]): Annotations with ``label`` and ``segment``.
        asked (dict[str, dict]): Videos with ``duration``.
        classes (Sequence[str]): Names of the classes.
        number (int): Segments of a video.

    Returns:
        list[dict]: ``video``, ``segments`` in seconds, ``scores`` and ``labels`` of each.
    """
    lengths = np.array([entry['segment'][1] - entry['segment'][0] for entry in known])
    labels = np.array([classes.index(entry['label']) for entry in known])
    drawn = []
    for video, entry in asked.items():
        length = np.minimum(lengths[rng.integers(len(known), size=number)], entry['duration'])
        start = rng.uniform(0, entry['duration'] - length)
        drawn.append(
            dict(
                video=video,
                segments=np.stack([start, start + length], 1),
                scores=rng.random(number),
                labels=labels[rng.integers(len(known), size=number)],
            )
        )
    return drawn


def read_predictions(path: str, videos: Sequence[str], classes: Sequence[str]) -> list[dict]:
    """Read what :class:`.temporal_map.TemporalMAP` wrote to its ``out_file``.

    Raises:
        ValueError: If the file has another form, or a video or class that is not known.
    """
    try:
        results = json.loads(Path(path).read_text(encoding='utf-8'))['results']
        unknown = sorted(set(results) - set(videos))
        if unknown:
            raise ValueError(f'{path}: the video {unknown[0]!r} is not in the subset')
        labels = {item['label'] for items in results.values() for item in items}
        strange = sorted(labels - set(classes))
        if strange:
            raise ValueError(
                f'{path}: the label {strange[0]!r} is not among the classes {", ".join(classes)}'
            )
        return [
            dict(
                video=video,
                segments=np.array([item['segment'] for item in items], float).reshape(-1, 2),
                scores=np.array([item['score'] for item in items], float),
                labels=np.array([classes.index(item['label']) for item in items], int),
            )
            for video, items in results.items()
        ]
    except json.JSONDecodeError as error:
        raise ValueError(f'{path} is not valid JSON: {error}') from error
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f'{path} has not the form that TemporalMAP writes with out_file: {error!r}'
        ) from error


def subset_of(database: dict[str, dict], name: str, path: str) -> dict[str, dict]:
    """Return the videos of a subset; raise ValueError that lists the subsets if there are none."""
    found = {
        video: entry
        for video, entry in database.items()
        if str(entry['subset']).lower() == name.lower()
    }
    if not found:
        subsets = sorted({str(entry['subset']) for entry in database.values()})
        raise ValueError(f'{path} has no subset {name!r}; it has {", ".join(map(repr, subsets))}')
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = Parser(__doc__, EXAMPLE)
    parser.add_argument('annotations', help="annotation file of ActivityNet's form")
    parser.add_argument('--known', default='training', help='subset for lengths and classes')
    parser.add_argument('--asked', default='validation', help='subset to be evaluated')
    parser.add_argument(
        '--predictions',
        metavar='FILE',
        help='keep the segments and scores that TemporalMAP wrote to its out_file, draw labels',
    )
    parser.add_argument(
        '--number', type=positive_integer, default=40, help='segments of a video (default: 40)'
    )
    parser.add_argument('--draws', type=positive_integer, default=20, help='default: 20')
    parser.add_argument('--definition', choices=DEFINITIONS, default=DEFINITIONS[0])
    parser.add_argument('--nms-iou', type=float, default=0.4, help='default: 0.4')
    parser.add_argument('--seed', type=int, default=0)
    arguments = parser.parse_args(argv)
    if arguments.seed < 0:
        parser.error(f'--seed must be at least 0, got {arguments.seed}')
    if not 0 <= arguments.nms_iou <= 1:
        parser.error(f'--nms-iou must lie between 0 and 1, got {arguments.nms_iou:g}')
    try:
        values = _draw(arguments)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f'mean and standard deviation over {arguments.draws} draws')
    for threshold, column in zip(_THRESHOLDS, values.T, strict=True):
        print(f'mAP@{threshold:g}  {column.mean():.4f}  {column.std():.4f}')
    return 0


def _draw(arguments: Any) -> np.ndarray:
    database = read_database(arguments.annotations)
    for entry in database.values():
        entry['annotations'] = [item for item in entry['annotations'] if item['label'] != AMBIGUOUS]
    asked = subset_of(database, arguments.asked, arguments.annotations)
    known = [
        entry
        for video in subset_of(database, arguments.known, arguments.annotations).values()
        for entry in video['annotations']
    ]
    classes = sorted(
        {item['label'] for video in database.values() for item in video['annotations']}
    )
    for entry in known:
        start, end = entry['segment']
        if not start < end:
            raise ValueError(
                f'{arguments.annotations} has a segment {entry["label"]!r} from {start} to {end} '
                's, which is empty'
            )
    for subset, found in (
        (arguments.known, known),
        (arguments.asked, [item for entry in asked.values() for item in entry['annotations']]),
    ):
        if not found:
            raise ValueError(f'{arguments.annotations}: no segment is known in subset {subset!r}')
    frequencies = np.array([classes.index(entry['label']) for entry in known])
    truths = {
        video: dict(
            segments=np.array([item['segment'] for item in entry['annotations']]).reshape(-1, 2),
            labels=np.array([classes.index(item['label']) for item in entry['annotations']]),
        )
        for video, entry in asked.items()
    }
    given = None
    if arguments.predictions is not None:
        given = read_predictions(arguments.predictions, list(asked), classes)
    rng = np.random.default_rng(arguments.seed)
    values = []
    for _ in range(arguments.draws):
        if given is None:
            drawn = random_predictions(rng, known, asked, classes, arguments.number)
        else:
            drawn = [
                dict(part, labels=rng.choice(frequencies, len(part['labels']))) for part in given
            ]
        for part in drawn:
            part['truth'] = truths[part['video']]
        joined = join_windows(drawn, arguments.nms_iou, max_predictions=200)
        values.append(
            mean_average_precision(joined, truths, len(classes), _THRESHOLDS, arguments.definition)
        )
    return np.array(values)
