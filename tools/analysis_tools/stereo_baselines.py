#!/usr/bin/env python
"""What needs no network: the best constant and OpenCV's block matchers on a folder of pairs.

The folder has Scene Flow's layout. Errors are counted as `kronattn_mm.DisparityMetric` does, over
all pixels with a truth and over those that both views show. The best constant is the median of all
truths, which no training could know. Block matchers leave pixels out; "answered" counts where they
answer, "filled" puts the nearest answer to the left in the gaps (the one to the right where there
is none), so that it can be compared with a network's, which answers everywhere.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine.registry import DATASETS

from kronattn_mm.cost.command_line import Parser, positive_integer
from kronattn_mm.cost.text import plain_table
from kronattn_mm.evaluation.disparity import disparity_errors, disparity_metrics

FIXED_POINT = 16  # OpenCV's disparities are sixteenths of a pixel


def matchers(max_disparity: int) -> dict[str, cv2.StereoMatcher]:
    """Return OpenCV's matchers, with the settings that OpenCV's own examples use.

    Args:
        max_disparity: Disparities to look for are below it; rounded up to a multiple of 16.
    """
    number = -(-max_disparity // 16) * 16
    block = 5
    return {
        'StereoBM': cv2.StereoBM.create(numDisparities=number, blockSize=15),
        'StereoSGBM': cv2.StereoSGBM.create(
            minDisparity=0,
            numDisparities=number,
            blockSize=block,
            P1=8 * 3 * block**2,
            P2=32 * 3 * block**2,
            disp12MaxDiff=1,
            uniquenessRatio=10,
            speckleWindowSize=100,
            speckleRange=2,
        ),
    }


def match(name: str, matcher: cv2.StereoMatcher, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return a matcher's disparities, float32 ``(H, W)``, NaN where it does not answer.

    The views are widened to the left, since OpenCV answers nothing in the columns where the right
    view ends.
    """
    if name == 'StereoBM':
        left, right = (cv2.cvtColor(view, cv2.COLOR_BGR2GRAY) for view in (left, right))
    margin = matcher.getNumDisparities()
    wide = [
        cv2.copyMakeBorder(view, 0, 0, margin, 0, cv2.BORDER_REPLICATE) for view in (left, right)
    ]
    disparity = matcher.compute(*wide)[:, margin:].astype(np.float32) / FIXED_POINT
    return np.where(disparity < matcher.getMinDisparity(), np.nan, disparity)


def filled(disparity: np.ndarray) -> np.ndarray:
    """Return ``disparity`` with each gap filled from its row: from the left, else from the right.

    A row without any answer (a block matcher has none in the first and last ones) becomes the
    nearest row that has one; without any answer at all everything becomes 0.
    """
    known = np.isfinite(disparity)
    answered = np.flatnonzero(known.any(1))
    if not len(answered):
        return np.zeros_like(disparity)
    result = disparity.copy()
    for row, places in zip(result, map(np.flatnonzero, known), strict=True):
        if len(places):
            before = np.searchsorted(places, np.arange(len(row)), side='right') - 1
            row[:] = row[places[np.maximum(before, 0)]]
    rows = np.arange(len(result))
    return result[answered[np.abs(rows[:, None] - answered).argmin(1)]]


def pairs_of(folder: str, split: str) -> Iterator[dict]:
    """Yield the pairs of a split with pictures and truths."""
    dataset = DATASETS.build(
        dict(
            type='kronattn_mm.SceneFlowDataset',
            data_root=folder,
            data_prefix=dict(
                image=str(Path('frames_cleanpass') / split),
                disparity=str(Path('disparity') / split),
                occlusion=str(Path('disparity_occlusions') / split),
            ),
            pipeline=[
                dict(type='kronattn_mm.LoadStereoPair'),
                dict(type='kronattn_mm.LoadDisparity'),
            ],
            test_mode=True,
        )
    )
    for index in range(len(dataset)):
        yield dataset[index]


def baselines(folder: str, split: str, max_disparity: int) -> dict[str, dict[str, float]]:
    """Work out the metrics of each baseline.

    Args:
        folder: Folder of Scene Flow's layout.
        split: Folder below ``frames_cleanpass`` and the others, such as ``TEST``.
        max_disparity: Only truths below it count.

    Returns:
        By name of the baseline: EPE, 3px, D1, the same with ``_visible``, and ``answered``, the
        share of the pixels in percent.

    Raises:
        FileNotFoundError: A file or folder is missing.
        ValueError: A file is broken, or there is no truth.
    """
    pairs = list(pairs_of(folder, split))
    truths = np.concatenate([pair['gt_disparity'].ravel() for pair in pairs])
    truths = truths[truths < max_disparity]  # NaN compares false
    if not truths.size:
        raise ValueError(f'{folder} has no disparity below {max_disparity} in {split}')
    constant = np.float32(np.median(truths))
    estimates = {
        f'constant {constant:.2f}': [np.full_like(pair['gt_disparity'], constant) for pair in pairs]
    }
    for name, matcher in matchers(max_disparity).items():
        answers = [match(name, matcher, pair['left'], pair['right']) for pair in pairs]
        estimates[f'{name}, answered'] = answers
        estimates[f'{name}, filled'] = [filled(answer) for answer in answers]
    return {name: _metrics(pairs, maps, max_disparity) for name, maps in estimates.items()}


def _metrics(
    pairs: Sequence[dict], estimates: Sequence[np.ndarray], max_disparity: int
) -> dict[str, float]:
    sums: dict[str, list] = {'': [], '_visible': []}
    known = answered = 0
    for pair, estimate in zip(pairs, estimates, strict=True):
        truth, prediction = torch.from_numpy(pair['gt_disparity']), torch.from_numpy(estimate)
        counted = truth < max_disparity
        known += int(counted.sum())
        counted &= torch.isfinite(prediction)
        answered += int(counted.sum())
        sums[''].append(disparity_errors(prediction, truth, counted))
        if 'gt_occluded' in pair:
            seen = counted & ~torch.from_numpy(pair['gt_occluded'])
            sums['_visible'].append(disparity_errors(prediction, truth, seen))
    metrics = {}
    for suffix, parts in sums.items():
        metrics |= disparity_metrics(parts, suffix)
    return metrics | dict(answered=100 * answered / known)


def table(results: dict[str, dict[str, float]]) -> str:
    """Lay the results out, one line a baseline."""
    columns = ['EPE', '3px', 'D1', 'EPE_visible', '3px_visible', 'D1_visible', 'answered']
    rows = [
        [name, *(f'{metrics[key]:.2f}' if key in metrics else '-' for key in columns)]
        for name, metrics in results.items()
    ]
    head = ['', *(key.replace('_', '\n') for key in columns)]
    return plain_table(head, rows, left=1)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(__doc__, 'python tools/analysis_tools/stereo_baselines.py data/stereo_pairs')
    parser.add_argument('folder', help="folder of Scene Flow's layout")
    parser.add_argument('--split', default='TEST', help='folder of the split (default: TEST)')
    parser.add_argument(
        '--max-disparity',
        type=positive_integer,
        default=32,
        help='count truths below it, and look for disparities below it (default: 32)',
    )
    parser.add_argument('--json', action='store_true', help='print JSON instead of a table')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    arguments = parse_arguments(argv)
    try:
        results = baselines(arguments.folder, arguments.split, arguments.max_disparity)
    except (OSError, ValueError) as error:
        print(f'stereo_baselines.py: error: {error}', file=sys.stderr)
        return 1
    print(json.dumps(results, indent=2) if arguments.json else table(results))
    return 0


if __name__ == '__main__':
    sys.exit(main())
