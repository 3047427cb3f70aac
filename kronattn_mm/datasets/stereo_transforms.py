"""From the files of a pair to what PSMNet takes.

Keys on the way: ``left`` and ``right`` (BGR, ``(H, W, 3)``, uint8), ``gt_disparity`` (``(H, W)``,
float32, NaN where unknown) and, where the set says it, ``gt_occluded`` (``(H, W)``, bool).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from mmcv.transforms import BaseTransform
from mmcv.transforms.utils import cache_randomness
from mmengine.structures import BaseDataElement

from ..layers.arguments import positive_int
from ..registry import TRANSFORMS
from .disparity_files import read_disparity


@TRANSFORMS.register_module()
class LoadStereoPair(BaseTransform):
    """Read both views: ``img_path`` and ``right_path`` become ``left`` and ``right``.

    Raises:
        ValueError: If a file is no picture, or the views differ in size.
    """

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        """Add ``left``, ``right``, ``img_shape`` and ``ori_shape``."""
        left, right = _read_picture(results['img_path']), _read_picture(results['right_path'])
        if left.shape != right.shape:
            raise ValueError(
                f'the views differ in size: {results["img_path"]} is {_size(left)}, '
                f'{results["right_path"]} is {_size(right)}'
            )
        shape = left.shape[:2]
        results.update(left=left, right=right, img_shape=shape, ori_shape=shape)
        return results


@TRANSFORMS.register_module()
class LoadDisparity(BaseTransform):
    """Read the truth: ``disparity_path`` becomes ``gt_disparity``, ``occlusion_path`` a mask.

    Raises:
        ValueError: If a file is broken or of another size than the left view.
    """

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        """Add ``gt_disparity`` and, if there is a file, ``gt_occluded``."""
        path = results['disparity_path']
        results['gt_disparity'] = _of_size(results, read_disparity(path), path)
        if 'occlusion_path' in results:
            path = results['occlusion_path']
            mask = _read_picture(path, cv2.IMREAD_GRAYSCALE) > 127
            results['gt_occluded'] = _of_size(results, mask, path)
        return results


@TRANSFORMS.register_module()
class RandomCropPair(BaseTransform):
    """Cut the same random window out of both views and the truth.

    Rows and columns of the windows agree, so that disparities stay what they are.

    Args:
        crop_size (Sequence[int]): Height and width of the window in pixels.

    Raises:
        ValueError: If the window is larger than the views.
    """

    def __init__(self, crop_size: Sequence[int]) -> None:
        if not isinstance(crop_size, Sequence) or len(crop_size) != 2:
            raise ValueError(f'crop_size must be height and width in pixels, got {crop_size!r}')
        self.crop_size = tuple(positive_int('crop_size', side) for side in crop_size)

    @cache_randomness
    def _corner(self, free: tuple[int, int]) -> tuple[int, int]:
        return tuple(int(np.random.randint(rest + 1)) for rest in free)

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        """Cut everything that has pixels."""
        free = tuple(
            whole - side for whole, side in zip(results['img_shape'], self.crop_size, strict=True)
        )
        if min(free) < 0:
            raise ValueError(
                f'crop_size {self.crop_size} is larger than {results["img_path"]} of '
                f'{_size(results["left"])}'
            )
        top, left = self._corner(free)
        window = np.s_[top : top + self.crop_size[0], left : left + self.crop_size[1]]
        for key in ('left', 'right', 'gt_disparity', 'gt_occluded'):
            if key in results:
                results[key] = results[key][window]
        results['img_shape'] = self.crop_size
        return results


@TRANSFORMS.register_module()
class PackStereoInputs(BaseTransform):
    """Make ``inputs`` ``(2, 3, H, W)``, left view first, and a data sample with the truth."""

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        """Return ``inputs`` and ``data_samples``."""
        pair = np.stack([results['left'], results['right']]).transpose(0, 3, 1, 2)
        metainfo = ('img_path', 'right_path', 'img_shape', 'ori_shape')
        sample = BaseDataElement(metainfo={key: results[key] for key in metainfo})
        for key in ('gt_disparity', 'gt_occluded'):
            if key in results:
                sample.set_data({key: torch.from_numpy(np.ascontiguousarray(results[key]))})
        return dict(inputs=torch.from_numpy(np.ascontiguousarray(pair)), data_samples=sample)


def _read_picture(path: str | Path, flag: int = cv2.IMREAD_COLOR_BGR) -> np.ndarray:
    content = np.fromfile(path, np.uint8)
    picture = cv2.imdecode(content, flag) if content.size else None
    if picture is None:
        raise ValueError(f'{path} is not a picture, or is truncated')
    return picture


def _of_size(results: dict[str, Any], values: np.ndarray, path: str) -> np.ndarray:
    if values.shape != results['left'].shape[:2]:
        raise ValueError(
            f'{path} is {_size(values)}, its left view {results["img_path"]} is '
            f'{_size(results["left"])}'
        )
    return values


def _size(values: np.ndarray) -> str:
    return f'{values.shape[1]} x {values.shape[0]} pixels'
