"""Pairs made on the spot, in the layouts of Scene Flow and of KITTI."""

from pathlib import Path

import cv2
import numpy as np

from kronattn_mm.datasets.disparity_files import write_kitti_png, write_pfm


def shifted_pair(
    rng: np.random.Generator, height: int, width: int, shift: int
) -> tuple[np.ndarray, np.ndarray]:
    """Views of a noisy wall whose disparity is ``shift`` everywhere."""
    wall = cv2.resize(
        rng.integers(0, 256, (height, (width + shift) // 2, 3), dtype=np.uint8),
        (width + shift, height),
    )
    return wall[:, :width], wall[:, shift:]


def write_scene_flow(root: Path, pairs: int = 2, size: tuple[int, int] = (64, 96)) -> Path:
    """Write pairs with a disparity of 4, 5, ... into ``root``; the first pixel is unknown."""
    rng = np.random.default_rng(0)
    for split in ('TRAIN', 'TEST'):
        for kind in ('left', 'right'):
            (root / 'frames_cleanpass' / split / kind).mkdir(parents=True)
        for kind in ('disparity', 'disparity_occlusions'):
            (root / kind / split / 'left').mkdir(parents=True)
        for number in range(pairs):
            left, right = shifted_pair(rng, *size, shift=4 + number)
            disparity = np.full(size, 4.0 + number, np.float32)
            disparity[0, 0] = np.nan
            hidden = np.zeros(size, np.uint8)
            hidden[:, : 4 + number] = 255
            name = f'{number:04d}'
            cv2.imwrite(str(root / 'frames_cleanpass' / split / 'left' / f'{name}.png'), left)
            cv2.imwrite(str(root / 'frames_cleanpass' / split / 'right' / f'{name}.png'), right)
            write_pfm(root / 'disparity' / split / 'left' / f'{name}.pfm', disparity)
            path = root / 'disparity_occlusions' / split / 'left' / f'{name}.png'
            cv2.imwrite(str(path), hidden)
    return root


def write_kitti(root: Path, pairs: int = 2, size: tuple[int, int] = (40, 60)) -> Path:
    """Write pairs in KITTI 2015's layout, each with a second time step that has no disparities."""
    rng = np.random.default_rng(0)
    for folder in ('image_2', 'image_3', 'disp_occ_0'):
        (root / 'training' / folder).mkdir(parents=True)
    for number in range(pairs):
        left, right = shifted_pair(rng, *size, shift=4)
        for step in ('10', '11'):
            name = f'{number:06d}_{step}.png'
            cv2.imwrite(str(root / 'training/image_2' / name), left)
            cv2.imwrite(str(root / 'training/image_3' / name), right)
        disparity = np.full(size, 4.25, np.float32)
        disparity[: size[0] // 2] = np.nan  # the sky
        write_kitti_png(root / 'training/disp_occ_0' / f'{number:06d}_10.png', disparity)
    return root
