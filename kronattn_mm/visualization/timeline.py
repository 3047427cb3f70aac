"""A picture of what was found when in a video: frames, and below them true and found segments."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..datasets.clip_transforms import read_frame

# Colours that are told apart with any sight, then again with hatching.
_COLOURS = ('#0b5394', '#c2500a', '#3d8c40', '#7b4fa3', '#8a6d1b', '#3a9ab2', '#b03060', '#555555')
_WIDTH = 11  # of the strip of frames, inches


def draw_timeline(
    meta: Mapping[str, Any],
    found: Mapping[str, np.ndarray],
    classes: Sequence[str],
    score_threshold: float,
    frames: int,
) -> np.ndarray:
    """Draw a video's frames, its true segments and the predicted ones over the same time.

    Args:
        meta (Mapping): Metainfo of a window; see ``SegmentSample``.
        found (Mapping): Predictions of the video from ``join_windows``.
        classes (Sequence[str]): Names of the classes.
        score_threshold (float): Predictions below it are left out.
        frames (int): How many frames to show.

    Returns:
        np.ndarray: The picture, uint8 ``(H, W, 3)``, RGB.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    duration = meta['num_frames'] / meta['fps']
    shown = found['scores'] >= score_threshold
    rows = _rows(found['segments'][shown])
    depth = max(rows, default=0) + 1
    # Frames share the axis of time: each is from the middle of the stretch that it stands over.
    indices = ((np.arange(frames) + 0.5) * meta['num_frames'] / frames).astype(int)
    strip = np.hstack([read_frame(meta, index)[..., ::-1] for index in indices])
    heights = (_WIDTH * strip.shape[0] / strip.shape[1], 0.6 + 0.28 * depth)  # inches
    figure = Figure((_WIDTH + 1, sum(heights) + 0.7), dpi=100, layout='constrained')
    canvas = FigureCanvasAgg(figure)
    top, below = figure.subplots(2, 1, height_ratios=heights, sharex=True)
    top.imshow(strip, extent=(0, duration, 0, 1), aspect='auto')
    top.set_axis_off()
    top.set_title(meta['video'], loc='left', fontsize=10)

    truth = meta['truth']
    for segment, label in zip(truth['segments'], truth['labels'], strict=True):
        _bar(below, segment, 0, label, classes[label], strength=1.0)
    for segment, label, score, row in zip(
        found['segments'][shown], found['labels'][shown], found['scores'][shown], rows, strict=True
    ):
        text = f'{classes[label]} {score:.2f}'
        _bar(below, segment, 1.3 + row, label, text, strength=0.2 + 0.5 * float(score))
    below.set_xlim(0, duration)
    below.set_ylim(1.3 + depth - 0.4, -0.6)
    below.set_yticks([0, 1.3], ['true', f'found,\nscore ≥ {score_threshold:g}'], fontsize=8)
    below.set_xlabel('seconds', fontsize=8)
    below.tick_params(labelsize=8)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _bar(
    axes: Any, segment: np.ndarray, height: float, label: int, text: str, strength: float
) -> None:
    start, end = map(float, segment)
    axes.barh(
        height,
        end - start,
        left=start,
        height=0.8,
        color=_COLOURS[label % len(_COLOURS)],
        hatch='' if label < len(_COLOURS) else '//',
        alpha=strength,
    )
    axes.text(
        (start + end) / 2,
        height,
        text,
        color='white' if strength == 1 else 'black',
        ha='center',
        va='center',
        fontsize=7,
        clip_on=True,
    )


def _rows(segments: np.ndarray) -> list[int]:
    """Give segments that overlap different rows, the first ones the first row."""
    ends: dict[int, list[tuple[float, float]]] = defaultdict(list)
    rows = []
    for start, end in segments:
        row = 0
        while any(start < other_end and other_start < end for other_start, other_end in ends[row]):
            row += 1
        ends[row].append((start, end))
        rows.append(row)
    return rows
