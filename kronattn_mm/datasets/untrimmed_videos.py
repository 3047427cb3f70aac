"""Untrimmed videos in the layout of THUMOS14: a folder of frames for each, one annotation file.

    ROOT/annotations.json
    ROOT/frames/<video>/image_00001.jpg, image_00002.jpg, ...

The annotation file has ActivityNet's form, which THUMOS14 is passed around in too::

    {"database": {"<video>": {"subset": "validation", "duration": 24.0, "fps": 8.0,
                              "annotations": [{"label": "spin", "segment": [1.0, 5.125]}]}}}

Times are seconds. A network takes windows of a fixed number of frames; how they are laid over a
video is that of the R-C3D port (github.com/sunnyxiaohu/R-C3D.pytorch, preprocess/thumos14): one
every ``step`` frames, and a last one that ends with the video. In training a window keeps a true
segment of which at least ``min_visible`` lies inside, cut to the window; windows without one are
left out.
"""

import difflib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.dataset import BaseDataset

from ..layers.arguments import positive_int
from ..registry import DATASETS

# THUMOS14's mark of stretches of which it is not sure what they show.
AMBIGUOUS = 'Ambiguous'


@DATASETS.register_module()
class UntrimmedVideoDataset(BaseDataset):
    """Windows of untrimmed videos.

    Args:
        ann_file (str): Annotation file; joined to ``data_root``.
        subset (str): Which videos: those whose ``subset`` this is, upper and lower case alike.
        window (int): Frames of a window.
        step (int): Frames from one window to the next. Defaults to a quarter of ``window``.
        fps (float, optional): Rate at which the frames were extracted. Defaults to None: the
            ``fps`` of each video in the annotation file.
        frame_template (str): Name of a frame's file. Defaults to ``'image_{:05d}.jpg'``, which
            ``ffmpeg -i VIDEO -r FPS image_%05d.jpg`` writes.
        first_frame (int): Number of the first frame. Defaults to 1, ffmpeg's.
        min_visible (float): See above. Defaults to 0.7.
        ignored_labels (Sequence[str]): Labels that are passed over. Defaults to THUMOS14's
            ``'Ambiguous'``.
        data_prefix (dict): Where the folders of frames are. Defaults to ``dict(frames='frames')``.
        metainfo (dict, optional): ``classes``, in the order in which the network numbers them.
            Defaults to the labels of the whole annotation file in the order of the alphabet.
        **arguments: ``data_root``, ``pipeline``, ``test_mode`` and others of mmengine's
            BaseDataset, which checks them.

    Raises:
        FileNotFoundError: If the annotation file, a folder of frames or frames are missing.
        ValueError: If the annotation file is not of that form, the subset or a label is unknown, a
            segment lies outside its video, no window shows one, or ``frame_template`` has no place
            for a number.
    """

    METAINFO: dict = dict()

    def __init__(
        self,
        ann_file: str,
        subset: str,
        window: int,
        step: int | None = None,
        fps: float | None = None,
        frame_template: str = 'image_{:05d}.jpg',
        first_frame: int = 1,
        min_visible: float = 0.7,
        ignored_labels: Sequence[str] = (AMBIGUOUS,),
        data_prefix: dict | None = None,
        metainfo: dict | None = None,
        **arguments: Any,
    ) -> None:
        self.subset = subset
        self.window = positive_int('window', window)
        self.step = positive_int('step', self.window // 4 or 1 if step is None else step)
        self.fps = fps
        if frame_template.format(1) == frame_template.format(2):
            raise ValueError(
                "frame_template must have a place for the number, as 'image_{:05d}.jpg' has, got "
                f'{frame_template!r}'
            )
        self.frame_template = frame_template
        self.first_frame = first_frame
        if not 0 < min_visible <= 1:
            raise ValueError(f'min_visible must be above 0 and up to 1, got {min_visible!r}')
        self.min_visible = min_visible
        self.ignored_labels = tuple(ignored_labels)
        super().__init__(
            ann_file=ann_file,
            data_prefix=data_prefix or dict(frames='frames'),
            metainfo=metainfo,
            **arguments,
        )

    def load_data_list(self) -> list[dict]:
        """Return what is known of each window of the subset's videos."""
        database = read_database(self.ann_file)
        if 'classes' not in self._metainfo:
            self._metainfo['classes'] = tuple(sorted(self._labels(database)))
        subsets = {str(entry['subset']).lower() for entry in database.values()}
        if self.subset.lower() not in subsets:
            raise ValueError(
                f'{self.ann_file} has no subset {self.subset!r}; it has '
                + ', '.join(map(repr, sorted(subsets)))
            )
        windows = []
        for video, entry in database.items():
            if str(entry['subset']).lower() == self.subset.lower():
                windows += self._windows(video, entry)
        if not windows:
            raise ValueError(
                f'{self.ann_file}: no window of {self.window} frames in subset {self.subset!r} '
                f'shows at least {self.min_visible:g} of a segment'
            )
        return windows

    def _labels(self, database: dict[str, dict]) -> set[str]:
        return {
            truth['label'] for entry in database.values() for truth in entry['annotations']
        } - set(self.ignored_labels)

    def _windows(self, video: str, entry: dict[str, Any]) -> list[dict]:
        fps = entry.get('fps') if self.fps is None else self.fps
        if fps is None:
            raise ValueError(
                f'{self.ann_file}: video {video!r} has no fps; say at which rate the frames were '
                'extracted with the argument fps'
            )
        if not (_is_time(fps) and fps > 0):
            raise ValueError(
                f'{self.ann_file}: the fps of video {video!r} must be a number above 0, got {fps!r}'
            )
        segments, labels = self._truth(video, entry, fps)
        folder = Path(self.data_prefix['frames']) / video
        number = self._count_frames(folder, math.floor(entry['duration'] * fps))
        windows = []
        for start, stop in window_places(number, self.window, self.step):
            inside, kept = clip_segments(segments * fps, start, stop, self.min_visible)
            if not self.test_mode and not len(kept):
                continue
            windows.append(
                dict(
                    video=video,
                    frames_folder=str(folder),
                    frame_template=self.frame_template,
                    first_frame=self.first_frame,
                    window=(start, stop),
                    fps=fps,
                    num_frames=number,
                    truth=dict(segments=segments, labels=labels),
                    gt_segments=inside,
                    gt_labels=labels[kept],
                )
            )
        return windows

    def _truth(self, video: str, entry: dict, fps: float) -> tuple[np.ndarray, np.ndarray]:
        segments, labels = [], []
        classes = list(self._metainfo['classes'])
        for truth in entry['annotations']:
            label, (start, end) = truth['label'], truth['segment']
            if label in self.ignored_labels:
                continue
            if label not in classes:
                near = difflib.get_close_matches(label, classes, n=1)
                raise ValueError(
                    f'{self.ann_file}: video {video!r} has the label {label!r}, which is not among '
                    f'the classes'
                    + (f'; did you mean {near[0]!r}?' if near else f': {", ".join(classes)}')
                )
            # A frame of tolerance: durations are often rounded.
            if not 0 <= start < end <= entry['duration'] + 1 / fps:
                raise ValueError(
                    f'{self.ann_file}: video {video!r} of {entry["duration"]} s has a segment '
                    f'{label!r} from {start} to {end} s, which must lie inside it and not be empty'
                )
            segments.append((start, end))
            labels.append(classes.index(label))
        return np.array(segments, np.float32).reshape(-1, 2), np.array(labels, np.int64)

    def _count_frames(self, folder: Path, expected: int) -> int:
        """Return how many frames there are; all of them must be, but for the last at the most.

        ``expected`` is duration times rate, which extraction rounds in its own way.
        """
        if not folder.is_dir():
            raise FileNotFoundError(
                f'{folder} is not there: a folder of frames for each video of {self.ann_file}'
            )
        present = {path.name for path in folder.iterdir()}
        number = 0
        while self.frame_template.format(number + self.first_frame) in present:
            number += 1
        # Durations and rates are rounded too: half a second, or a hundredth of a long video.
        if number == 0 or number < expected - max(1, 0.01 * expected):
            missing = self.frame_template.format(number + self.first_frame)
            raise FileNotFoundError(
                f'{folder} lacks {missing}: {expected} frames are expected by duration and rate, '
                f'{number} are there without a gap'
            )
        return number


def read_database(path: str) -> dict[str, dict]:
    """Read an annotation file of ActivityNet's form and check what is relied on.

    Args:
        path (str): The file.

    Returns:
        dict[str, dict]: ``subset``, ``duration`` and ``annotations`` of each video.

    Raises:
        FileNotFoundError: If it is not there.
        ValueError: If it has another form; the message says what is wrong where.
    """
    try:
        content = json.loads(Path(path).read_text(encoding='utf-8'))
    except FileNotFoundError:
        raise FileNotFoundError(f'annotation file {path} does not exist') from None
    except ValueError as error:
        raise ValueError(f'annotation file {path} is not valid JSON: {error}') from error
    database = content.get('database') if isinstance(content, dict) else None
    if not isinstance(database, dict) or not database:
        raise ValueError(f"{path} has no videos (expected an object 'database' that is not empty)")
    for video, entry in database.items():
        for name in ('subset', 'duration', 'annotations'):
            if not isinstance(entry, dict) or name not in entry:
                raise ValueError(f'{path}: video {video!r} has no {name!r}')
        if not (_is_time(entry['duration']) and entry['duration'] > 0):
            raise ValueError(
                f'{path}: video {video!r} has the duration {entry["duration"]!r} (expected seconds '
                'above 0)'
            )
        if not isinstance(entry['annotations'], list):
            raise ValueError(
                f'{path}: the annotations of video {video!r} are no list: '
                f'{json.dumps(entry["annotations"])[:80]}'
            )
        for truth in entry['annotations']:
            segment = truth.get('segment') if isinstance(truth, dict) else None
            if not (
                isinstance(segment, list)
                and len(segment) == 2
                and all(map(_is_time, segment))
                and isinstance(truth.get('label'), str)
            ):
                raise ValueError(
                    f'{path}: video {video!r} has the annotation {json.dumps(truth)[:80]} '
                    "(expected a 'label' and a 'segment' [start, end] in seconds)"
                )
    return database


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def window_places(frames: int, window: int, step: int) -> list[tuple[int, int]]:
    """Lay windows over a video: one every ``step`` frames, and one that ends with the video.

    Args:
        frames (int): Frames of the video.
        window (int): Frames of a window; a shorter video gets one that is longer than itself.
        step (int): Frames from one to the next.

    Returns:
        list[tuple[int, int]]: First frame and the one after the last of each.
    """
    last = max(frames - window, 0)
    starts = sorted({*range(0, last + 1, step), last})
    return [(start, start + window) for start in starts]


def clip_segments(
    segments: np.ndarray, start: int, stop: int, min_visible: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the segments that lie in a window, as seen from it.

    Args:
        segments (np.ndarray): ``(n, 2)`` in frames of the video.
        start (int): The window's first frame.
        stop (int): The frame after its last.
        min_visible (float): Share of a segment that must lie inside.

    Returns:
        tuple[np.ndarray, np.ndarray]: Those segments cut to the window, in frames from its start,
        ``(m, 2)``, and their indices, ``(m,)``.
    """
    inside = segments.clip(start, stop)
    visible = inside[:, 1] - inside[:, 0]
    kept = np.flatnonzero(
        (visible > 0) & (visible >= min_visible * (segments[:, 1] - segments[:, 0]))
    )
    return (inside[kept] - start).astype(np.float32), kept
