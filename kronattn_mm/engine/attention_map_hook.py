"""Send pictures of attention maps to mmengine's visualisation backends while a model trains."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.runner import EpochBasedTrainLoop, Runner

from ..registry import HOOKS
from ..visualization.attention_maps import (
    AttentionMapError,
    MapRecorder,
    choose_layer,
    shown_region,
)


@HOOKS.register_module()
class AttentionMapHook(Hook):
    """Draw the attention maps of one inserted layer on the first images of the validation set.

    The maps are those of the validation's own forward pass: no pass is added, and where an
    ``EMAHook`` validates with averaged weights, the maps are those weights'. Every picture goes to
    ``runner.visualizer.add_image``, and so to each backend in ``vis_backends``. Only the main
    process draws. A run with this hook computes the same numbers as one without.

    Args:
        layer (str, optional): Inserted layer, such as ``'neck.fpn1'``; see
            :func:`kronattn_mm.inserted_layers`. Defaults to None: the one with the finest maps.
        interval (int): Draw in every ``interval``-th validation. Defaults to 1.
        num_images (int): Number of images. Defaults to 2.
        maps (int): Number of maps for each image, the most distinct first. Defaults to 6.

    Raises:
        TypeError: If ``layer`` is not a name or a number is not an integer.
        ValueError: If a number is less than one; at the start of the run, if the model has no
            such layer.
    """

    def __init__(
        self, layer: str | None = None, interval: int = 1, num_images: int = 2, maps: int = 6
    ) -> None:
        if layer is not None and not isinstance(layer, str):
            raise TypeError(f'layer must be the name of an inserted layer, got {layer!r}')
        for name, value in (('interval', interval), ('num_images', num_images), ('maps', maps)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f'{name} must be an integer, got {value!r}')
            if value < 1:
                raise ValueError(f'{name} must be at least 1, got {value}')
        self.layer = layer
        self.interval = interval
        self.num_images = num_images
        self.maps = maps
        self._name: str | None = None
        self._drawn = 0
        self._recorder: MapRecorder | None = None

    def before_run(self, runner: Runner) -> None:
        """Find the layer, so that a wrong name ends the run before it has cost anything."""
        model = runner.model
        self._name = choose_layer(model.module if is_model_wrapper(model) else model, self.layer)

    def before_val_epoch(self, runner: Runner) -> None:
        """Start with the first image again, if this validation is to be drawn."""
        self._drawn = 0 if is_main_process() and self._due(runner) else self.num_images

    def before_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict | tuple | list | None = None
    ) -> None:
        """Begin to record."""
        if self._drawn < self.num_images:
            self._recorder = MapRecorder(runner.model, self._name, self.num_images - self._drawn)
            self._recorder.__enter__()

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: Sequence[Any] | None = None,
    ) -> None:
        """Draw what was recorded."""
        if self._recorder is None:
            return
        recorder, self._recorder = self._recorder, None
        recorder.__exit__(None, None, None)
        try:
            recorder.check()
            self._draw(runner, recorder, data_batch, outputs)
        except AttentionMapError as error:
            # Hours of training are worth more than a picture.
            print_log(f'AttentionMapHook draws nothing: {error}', 'current', logging.WARNING)
            self._drawn = self.num_images

    def _due(self, runner: Runner) -> bool:
        if runner.train_loop is None or isinstance(runner.train_loop, dict):
            return True  # a validation by itself
        return self._step(runner) // runner.val_interval % self.interval == 0

    def _step(self, runner: Runner) -> int:
        # Counted as the library counts validations, so that it survives resuming.
        by_epoch = isinstance(runner.train_loop, EpochBasedTrainLoop)
        return runner.epoch if by_epoch else runner.iter

    def _draw(
        self, runner: Runner, recorder: MapRecorder, data_batch: Any, outputs: Sequence[Any] | None
    ) -> None:
        from ..visualization.attention_picture import draw_attention, network_image

        if not isinstance(data_batch, dict) or 'inputs' not in data_batch or outputs is None:
            raise AttentionMapError('the validation batch is not a dict with "inputs"')
        for inputs, sample, maps in zip(data_batch['inputs'], outputs, recorder.maps, strict=False):
            image = network_image(inputs)
            height, width = shown_region(image.shape[:2], recorder.network_shape, sample.metainfo)
            path = sample.metainfo.get('img_path')
            title = Path(path).name if isinstance(path, str) else f'image {self._drawn}'
            picture = draw_attention(
                image[:height, :width], maps, recorder.network_shape, self._name, title, self.maps
            )
            # A slash in the name would be a folder that mmengine's local backend does not make.
            runner.visualizer.add_image(
                f'attention_{self._name}_{self._drawn}', picture, step=self._step(runner)
            )
            self._drawn += 1
