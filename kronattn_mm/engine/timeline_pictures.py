"""A hook that draws timelines of what was found in some videos of each validation and test."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mmengine.hooks import Hook
from mmengine.runner import Runner

from ..layers.arguments import positive_int
from ..registry import HOOKS


@HOOKS.register_module()
class TimelinePictures(Hook):
    """Draw timelines of some videos after each validation and test, with the runner's visualizer.

    The videos are spread evenly over the set and are the same ones each time. Of several processes
    the first one draws, with the windows that it has seen.

    Args:
        number (int): How many videos. Defaults to 4.
        score_threshold (float): Predictions below it are not drawn. Defaults to 0.2.
        nms_iou (float): For joining windows, as of the metric. Defaults to 0.4.
        frames (int): Frames above a timeline. Defaults to 12.

    Raises:
        TypeError: If a number is none.
        ValueError: If a number is below 1.
    """

    def __init__(
        self, number: int = 4, score_threshold: float = 0.2, nms_iou: float = 0.4, frames: int = 12
    ) -> None:
        self.number = positive_int('number', number)
        self.score_threshold = score_threshold
        self.nms_iou = nms_iou
        self.frames = positive_int('frames', frames)
        self._windows: list[dict] = []
        self._meta: dict[str, dict] = {}

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Sequence[Any] | None = None,
    ) -> None:
        """Keep the predictions of the windows."""
        from ..evaluation.temporal_map import window_result  # only this hook needs torchvision

        for sample in outputs or ():
            self._windows.append(window_result(sample.to_dict()))
            self._meta[sample.video] = sample.metainfo

    after_test_iter = after_val_iter

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Draw."""
        dataset = runner.val_dataloader.dataset
        self._draw(runner, 'val', dataset.metainfo['classes'], runner.epoch)

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Draw."""
        # `runner.epoch` would build the training loop, and with it a data set that a test lacks.
        dataset = runner.test_dataloader.dataset
        self._draw(runner, 'test', dataset.metainfo['classes'], step=0)

    def _draw(self, runner: Runner, word: str, classes: Sequence[str], step: int) -> None:
        from ..evaluation.temporal_map import join_windows
        from ..visualization.timeline import draw_timeline

        videos = join_windows(self._windows, self.nms_iou, max_predictions=200)
        names = sorted(videos)
        places = np.linspace(0, len(names) - 1, min(self.number, len(names))).round().astype(int)
        for index, place in enumerate(dict.fromkeys(places.tolist())):
            video = names[place]
            picture = draw_timeline(
                self._meta[video], videos[video], classes, self.score_threshold, self.frames
            )
            runner.visualizer.add_image(f'{word}_{index}', picture, step=step)
        self._windows.clear()
        self._meta.clear()
