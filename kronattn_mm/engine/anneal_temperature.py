"""A hook that lowers the temperature of dynamic convolution over the first epochs.

Paper: "Dynamic Convolution: Attention over Convolution Kernels" (arXiv 1912.03458) lowers it from
30 to 1 along a line over the first 10 epochs; "Shift-and-Balance Attention" (arXiv 2103.13080)
leaves it at 30.
"""

import math

from mmengine.hooks import EMAHook, Hook
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import nn

from ..layers import DynamicConv2d
from ..plugging.switching import unwrapped
from ..registry import HOOKS


@HOOKS.register_module()
class AnnealTemperature(Hook):
    """Lower the temperature of every ``DynamicConv2d`` along a line, epoch by epoch.

    A convolution begins with the temperature that its config gives it. In epoch e, counted from 0,
    it has ``start + (end - start) * min(e / epochs, 1)``. The temperature depends on the epoch
    alone, so a resumed training goes on where it was, also from a checkpoint saved before the hook
    was added. An ``EMAHook`` that averages buffers would average temperatures too: its model is
    given the current one at the end of each epoch, before it is validated and saved.

    Args:
        epochs (int): Epochs until ``end`` is reached. Defaults to 10.
        end (float): The temperature afterwards. Defaults to 1.

    Raises:
        TypeError: If ``epochs`` is not an integer.
        ValueError: If ``epochs`` or ``end`` is not positive and finite; at the start of the run, if
            the model has no ``DynamicConv2d`` or the training does not count epochs.
    """

    def __init__(self, epochs: int = 10, end: float = 1.0) -> None:
        if isinstance(epochs, bool) or not isinstance(epochs, int):
            raise TypeError(f'epochs must be an integer, got {epochs!r}')
        if epochs < 1:
            raise ValueError(f'epochs must be at least 1, got {epochs}')
        if isinstance(end, bool) or not isinstance(end, (int, float)) or not 0 < end < math.inf:
            raise ValueError(f'end must be a positive number, got {end!r}')
        self.epochs = epochs
        self.end = float(end)
        self._starts: dict[str, float] = {}

    def before_run(self, runner: Runner) -> None:
        """Note what each convolution begins with, before a checkpoint replaces it."""
        convs = dynamic_convs(unwrapped(runner.model))
        if not convs:
            raise ValueError('AnnealTemperature: the model has no DynamicConv2d')
        self._starts = {name: conv.attention.temperature.item() for name, conv in convs.items()}

    def before_train(self, runner: Runner) -> None:
        """Refuse loops without epochs."""
        if not isinstance(runner.train_loop, EpochBasedTrainLoop):
            raise ValueError(
                f'AnnealTemperature counts epochs, and {type(runner.train_loop).__name__} has none'
            )

    def before_train_epoch(self, runner: Runner) -> None:
        """Set the temperature of this epoch."""
        self._set(unwrapped(runner.model), runner.epoch)

    def after_train_epoch(self, runner: Runner) -> None:
        """Put averaged temperatures right."""
        for hook in runner.hooks:
            if isinstance(hook, EMAHook):
                self._set(hook.ema_model.module, runner.epoch)

    def _set(self, model: nn.Module, epoch: int) -> None:
        progress = min(epoch / self.epochs, 1.0)
        for name, conv in dynamic_convs(model).items():
            start = self._starts[name]
            conv.attention.temperature.fill_(start + (self.end - start) * progress)


def dynamic_convs(model: nn.Module) -> dict[str, DynamicConv2d]:
    """Return the dynamic convolutions of a model by their dotted paths."""
    return {
        name: module for name, module in model.named_modules() if isinstance(module, DynamicConv2d)
    }
