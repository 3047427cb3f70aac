"""A hook that draws a few pictures at each validation, and none in a test.

mmdet's own DetVisualizationHook counts iterations, so that the number of pictures depends on the
number of GPUs, and once switched on it also draws every picture of every test.
"""

from collections.abc import Sequence
from typing import Any

import mmcv
from mmengine.hooks import Hook
from mmengine.runner import Runner

from ..registry import HOOKS


@HOOKS.register_module()
class ValidationPictures(Hook):
    """Draw ground truth and predictions of some validation pictures with the runner's visualizer.

    The pictures are spread evenly over the validation set and are the same ones each time, so
    that epochs can be compared.

    Args:
        number (int): How many pictures at each validation. Defaults to 4.

    Raises:
        ValueError: If ``number`` is smaller than 1.
    """

    def __init__(self, number: int = 4) -> None:
        if number < 1:
            raise ValueError(
                f'number must be at least 1, got {number!r}; leave the hook out to draw nothing'
            )
        self.number = number

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Sequence[Any] | None = None,
    ) -> None:
        index, rest = divmod(batch_idx, max(1, len(runner.val_dataloader) // self.number))
        if rest or index >= self.number or not outputs:
            return
        sample = outputs[0]
        image = mmcv.imread(sample.img_path, channel_order='rgb')
        runner.visualizer.add_datasample(
            f'val_{index}', image, data_sample=sample, step=runner.iter
        )
