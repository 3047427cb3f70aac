"""Disparity maps in files: PFM as Scene Flow has them, 16-bit PNG as KITTI has them.

In memory a map is float32 of shape (H, W) in pixels; NaN where there is no value.
"""

import re
from pathlib import Path

import cv2
import numpy as np

# Largest side of a map that is believed; a header of a broken file may say anything.
_LARGEST_SIDE = 1 << 16
KITTI_SCALE = 256  # KITTI stores disparities times 256; 0 means that nothing was measured


class DisparityFileError(ValueError):
    """A file that is no disparity map; the message names the file and what is wrong with it."""


def read_disparity(path: str | Path) -> np.ndarray:
    """Read a map from a ``.pfm`` or a 16-bit ``.png`` file.

    Raises:
        DisparityFileError: If the file is neither, or broken.
        FileNotFoundError: If it is not there.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _READERS:
        raise DisparityFileError(
            f'{path}: disparity maps are read from {" and ".join(_READERS)} files'
        )
    return _READERS[suffix](path)


def read_pfm(path: str | Path) -> np.ndarray:
    """Read a map from a PFM file: Scene Flow's, or Middlebury's, where infinite means unknown.

    The header is ``Pf``, width, height and a scale; a negative scale means little-endian. Rows
    are stored from the bottom to the top.

    Raises:
        DisparityFileError: If it is not a grey PFM file, or has not as many values as it says.
    """
    content = Path(path).read_bytes()
    header = re.match(rb'(P[fF])\s+(\d+)\s+(\d+)\s+(\S+)\s', content)
    if header is None:
        raise DisparityFileError(
            f'{path} is not a PFM file: it begins with {content[:12]!r}, not with Pf, width, '
            'height and scale'
        )
    magic, width, height = header[1], int(header[2]), int(header[3])
    if magic == b'PF':
        raise DisparityFileError(f'{path} holds colours (PF), a disparity map is grey (Pf)')
    try:
        scale = float(header[4])
    except ValueError:
        scale = 0.0
    if not (0 < abs(scale) < np.inf and 1 <= width <= _LARGEST_SIDE >= height >= 1):
        raise DisparityFileError(
            f'{path}: a width of {width}, a height of {height} and the scale '
            f'{header[4].decode(errors="replace")!r} are no map'
        )
    data = content[header.end() :]
    if len(data) != 4 * width * height:
        raise DisparityFileError(
            f'{path} should have {4 * width * height} bytes after its header for {width} x '
            f'{height} pixels, but has {len(data)}; it may be truncated'
        )
    values = np.frombuffer(data, '<f4' if scale < 0 else '>f4').reshape(height, width)
    disparity = values[::-1].astype(np.float32)
    disparity[~np.isfinite(disparity)] = np.nan
    return disparity


def write_pfm(path: str | Path, disparity: np.ndarray) -> None:
    """Write a map as a little-endian PFM file; unknown values become infinite.

    Raises:
        ValueError: If the map is not two-dimensional.
    """
    if disparity.ndim != 2:
        raise ValueError(f'a disparity map has two dimensions, got the shape {disparity.shape}')
    values = np.where(np.isnan(disparity), np.inf, disparity).astype('<f4')
    header = f'Pf\n{disparity.shape[1]} {disparity.shape[0]}\n-1.0\n'
    Path(path).write_bytes(header.encode() + values[::-1].tobytes())


def read_kitti_png(path: str | Path) -> np.ndarray:
    """Read a map from a 16-bit grey PNG file: value / 256, and 0 is no measurement.

    Raises:
        DisparityFileError: If it is not a grey PNG file of 16 bits.
        FileNotFoundError: If it is not there.
    """
    content = np.fromfile(path, np.uint8)
    values = cv2.imdecode(content, cv2.IMREAD_UNCHANGED) if content.size else None
    if values is None:
        raise DisparityFileError(f'{path} is not a picture, or is truncated')
    if values.dtype != np.uint16 or values.ndim != 2:
        raise DisparityFileError(
            f'{path} holds {values.dtype} values of the shape {values.shape}; disparity maps of '
            'KITTI are 16-bit grey'
        )
    return np.where(values == 0, np.nan, values / np.float32(KITTI_SCALE)).astype(np.float32)


def write_kitti_png(path: str | Path, disparity: np.ndarray) -> None:
    """Write a map as a 16-bit PNG file, rounded to 1/256 pixel; unknown values become 0.

    A known disparity below 1/256 becomes 1/256, since 0 has the other meaning.

    Raises:
        ValueError: If the map is not two-dimensional, or a value is negative or too large.
    """
    if disparity.ndim != 2:
        raise ValueError(f'a disparity map has two dimensions, got the shape {disparity.shape}')
    known = np.isfinite(disparity)
    values = np.round(disparity[known] * KITTI_SCALE)
    if values.size and not (values.min() >= 0 and values.max() < 1 << 16):
        raise ValueError(
            f'disparities from {disparity[known].min():g} to {disparity[known].max():g} do not '
            f'fit into 16 bits: 0 to {(1 << 16) / KITTI_SCALE:g} do'
        )
    stored = np.zeros(disparity.shape, np.uint16)
    stored[known] = np.maximum(values, 1)
    if not cv2.imwrite(str(path), stored):
        raise OSError(f'{path} could not be written')


_READERS = {'.pfm': read_pfm, '.png': read_kitti_png}
