"""Steps of a pipeline for windows of frames.

``results['clip']`` holds the frames, uint8 ``(T, H, W, 3)``, BGR. Frames are read one by one, so
that a window takes no more memory than itself.
"""

from collections.abc import Sequence
from pathlib import Path

import mmcv
import numpy as np
import torch
from mmcv.transforms import BaseTransform
from mmengine.structures import InstanceData

from ..layers.arguments import positive_int
from ..models.temporal.structures import SegmentSample
from ..registry import TRANSFORMS

_META = (
    'video',
    'window',
    'fps',
    'num_frames',
    'frames_folder',
    'frame_template',
    'first_frame',
    'truth',
)


@TRANSFORMS.register_module()
class LoadFrames(BaseTransform):
    """Read the frames of a window; a window longer than the video repeats the last one."""

    def transform(self, results: dict) -> dict:
        """Add ``clip`` to what the dataset knows of a window.

        Raises:
            FileNotFoundError: If a frame is not there.
            ValueError: If a frame cannot be read or has another size than the others.
        """
        frames = []
        for index in range(*results['window']):
            index = min(index, results['num_frames'] - 1)
            frames.append(read_frame(results, index))
            if frames[-1].shape != frames[0].shape:
                raise ValueError(
                    f'{frame_path(results, index)} has the shape {frames[-1].shape}, the frames '
                    f'before it have {frames[0].shape}'
                )
        results['clip'] = np.stack(frames)
        return results


def frame_path(meta: dict, index: int) -> Path:
    """Return the file of a frame, counted from 0, of the video that ``meta`` is of."""
    name = meta['frame_template'].format(index + meta['first_frame'])
    return Path(meta['frames_folder']) / name


def read_frame(meta: dict, index: int) -> np.ndarray:
    """Read a frame, counted from 0: uint8 ``(H, W, 3)``, BGR.

    Raises:
        FileNotFoundError: If it is not there.
        ValueError: If it cannot be read.
    """
    path = frame_path(meta, index)
    content = path.read_bytes()
    frame = mmcv.imfrombytes(content) if content else None
    if frame is None:
        raise ValueError(f'{path} cannot be read; it may be truncated')
    return frame


@TRANSFORMS.register_module()
class ResizeFrames(BaseTransform):
    """Resize all frames.

    Args:
        scale (Sequence[int]): Height and width afterwards, in pixels.
    """

    def __init__(self, scale: Sequence[int]) -> None:
        self.scale = tuple(positive_int('scale', length) for length in scale)

    def transform(self, results: dict) -> dict:
        """Resize ``clip``."""
        size = self.scale[::-1]
        results['clip'] = np.stack([mmcv.imresize(frame, size) for frame in results['clip']])
        return results


@TRANSFORMS.register_module()
class CropFrames(BaseTransform):
    """Cut the same square out of all frames.

    Args:
        size (int): Its side in pixels.
        random (bool): At a random place; False takes the middle.

    Raises:
        ValueError: In use, if the frames are smaller.
    """

    def __init__(self, size: int, random: bool) -> None:
        self.size = positive_int('size', size)
        self.random = random

    def transform(self, results: dict) -> dict:
        """Crop ``clip``."""
        height, width = results['clip'].shape[1:3]
        if min(height, width) < self.size:
            raise ValueError(
                f'frames of {height} x {width} pixels are too small for a square of {self.size}'
            )
        room = np.array([height - self.size, width - self.size])
        top, left = np.random.randint(room + 1) if self.random else room // 2
        results['clip'] = results['clip'][:, top : top + self.size, left : left + self.size]
        return results


@TRANSFORMS.register_module()
class FlipFrames(BaseTransform):
    """Exchange left and right in all frames of a window, or in none.

    Args:
        prob (float): How often. Defaults to 0.5.
    """

    def __init__(self, prob: float = 0.5) -> None:
        self.prob = prob

    def transform(self, results: dict) -> dict:
        """Flip ``clip``, or leave it."""
        if np.random.rand() < self.prob:
            results['clip'] = results['clip'][:, :, ::-1]
        return results


@TRANSFORMS.register_module()
class PackSegments(BaseTransform):
    """Make tensors: ``inputs`` ``(3, T, H, W)``, uint8, and ``data_samples``."""

    def transform(self, results: dict) -> dict:
        """Return what the data preprocessor takes."""
        clip = np.ascontiguousarray(results['clip'].transpose(3, 0, 1, 2))
        sample = SegmentSample(metainfo={name: results[name] for name in _META})
        sample.gt_instances = InstanceData(
            segments=torch.from_numpy(results['gt_segments']),
            labels=torch.from_numpy(results['gt_labels']),
        )
        return dict(inputs=torch.from_numpy(clip), data_samples=sample)
