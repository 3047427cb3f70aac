"""Images to try a graph with: those that are named, the test set's, or made ones."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from torch import Tensor
from torch.nn import functional


def batch_of(images: Sequence[np.ndarray], number: int, shape: tuple[int, int]) -> Tensor:
    """Resize images and stack them; where there are fewer than asked for, they come again.

    Args:
        images (Sequence[np.ndarray]): Of shape ``(H, W, 3)``, BGR, 0 to 255.
        number (int): Images in the batch.
        shape (tuple[int, int]): Height and width, in pixels.

    Returns:
        Tensor: ``(number, 3, *shape)`` in float32, BGR, 0 to 255.
    """
    import mmcv

    chosen = [images[place % len(images)] for place in range(number)]
    resized = [mmcv.imresize(image, shape[::-1]) for image in chosen]
    return torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).float().contiguous()


def read_images(paths: Sequence[str | Path]) -> list[np.ndarray]:
    """Read image files as ``(H, W, 3)``, BGR."""
    import mmcv

    return [mmcv.imread(str(path), channel_order='bgr') for path in paths]


def images_of_test_set(config: Config, number: int) -> list[np.ndarray]:
    """Read the first images of the data set that a config is tested on.

    Args:
        config (Config): A whole config.
        number (int): How many, at most.

    Raises:
        ValueError: If the config has no such data set, or it is not there; the message says which.
    """
    from mmengine.registry import DATASETS, DefaultScope

    from ..cost.config import quiet

    loader = config.get('test_dataloader')
    if not loader:
        raise ValueError('the config has no test_dataloader')
    with DefaultScope.overwrite_default_scope(config.get('default_scope')):
        try:
            with quiet():
                dataset = DATASETS.build(loader['dataset'])
                infos = [dataset.get_data_info(i) for i in range(min(number, len(dataset)))]
            found = [
                info['img'] if 'img' in info else read_images([info['img_path']])[0]
                for info in infos
            ]
        except Exception as error:  # whatever a data set raises that is not there
            raise ValueError(
                f"the config's test set cannot be read: {' '.join(str(error).split())[:200]}"
            ) from error
    if not found:
        raise ValueError("the config's test set is empty")
    return found


def made_images(number: int, shape: tuple[int, int]) -> list[np.ndarray]:
    """Make images of soft random patches, the same in every call.

    Args:
        number (int): How many.
        shape (tuple[int, int]): Height and width, in pixels.
    """
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(
        number, 3, max(2, shape[0] // 16), max(2, shape[1] // 16), generator=generator
    )
    fine = functional.interpolate(coarse, shape, mode='bilinear', align_corners=False)
    return list((fine * 255).byte().permute(0, 2, 3, 1).numpy())
