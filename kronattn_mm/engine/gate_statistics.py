"""A hook that logs lambda and the saturation of gates at each validation."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner

from ..registry import HOOKS
from ..visualization.gates import THRESHOLD, GateRecorder, gated_layers


@HOOKS.register_module()
class GateStatistics(Hook):
    """Log how large lambda is, and which share of the channels has a gate that passes no gradient.

    For models with Shift-and-Balance or Squeeze-and-Excite in them, as convolutions or as blocks;
    in others it does nothing, so that one schedule serves a comparison. It measures in the forward
    pass of the validation and changes nothing in it. What it logs stands beside the metrics of the
    validation, in the terminal, in ``scalars.json`` and in every ``vis_backends`` entry:

    - ``gate/lambda_mean``, ``gate/lambda_std``: over all channels of all Shift-and-Balance layers;
    - ``gate/saturated``: share of channels whose gate has a slope below the threshold;
    - ``gate/attention_below``: whose gradient through the attention branch has a factor below it;
    - ``gate/trunk_below``: likewise through the trunk;
    - ``gate/both_below``: with both, so that no gradient passes.

    :mod:`kronattn_mm.visualization.gates` has the factors.

    Args:
        num_batches (int): Batches of each validation, the first ones, that are measured. Defaults
            to 2.
        threshold (float): Below this a factor counts as vanished. Defaults to 1e-3.

    Raises:
        TypeError: If ``num_batches`` is not an integer or ``threshold`` not a number.
        ValueError: If ``num_batches`` or ``threshold`` is not positive.
    """

    def __init__(self, num_batches: int = 2, threshold: float = THRESHOLD) -> None:
        if isinstance(num_batches, bool) or not isinstance(num_batches, int):
            raise TypeError(f'num_batches must be an integer, got {num_batches!r}')
        if num_batches < 1:
            raise ValueError(f'num_batches must be at least 1, got {num_batches}')
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)):
            raise TypeError(f'threshold must be a number, got {threshold!r}')
        if not threshold > 0:
            raise ValueError(f'threshold must be positive, got {threshold!r}')
        self.num_batches = num_batches
        self.threshold = threshold
        self._recorder: GateRecorder | None = None
        self._recording = ExitStack()

    def before_run(self, runner: Runner) -> None:
        """Say how many layers there are to watch."""
        print_log(
            f'GateStatistics: {len(gated_layers(runner.model))} layers with a gate',
            logger='current',
        )

    def before_val_epoch(self, runner: Runner) -> None:
        """Begin anew; weights averaged by an ``EMAHook`` are in the model only from here on."""
        self._recorder = None

    def before_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict | tuple | list | None = None
    ) -> None:
        """Begin to measure."""
        if batch_idx < self.num_batches:
            if self._recorder is None:
                self._recorder = GateRecorder(runner.model, self.threshold)
            self._recording.enter_context(self._recorder.recording())

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: Sequence[Any] | None = None,
    ) -> None:
        """Stop measuring."""
        self._recording.close()

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Hand the figures over to the logger, which writes them together with the metrics."""
        recorder, self._recorder = self._recorder, None
        if recorder is None or not recorder.records:
            return
        for name, value in scalars(recorder).items():
            runner.message_hub.update_scalar(f'val/gate/{name}', value)


def scalars(recorder: GateRecorder) -> dict[str, float]:
    """Return what the hook logs of a recorder, without the prefix ``gate/``."""
    shares = recorder.shares()
    values = dict(
        saturated=shares['gate'],
        attention_below=shares['attention'],
        trunk_below=shares['trunk'],
        both_below=shares['both'],
    )
    lambdas = recorder.lambdas()
    if lambdas is not None:
        values = dict(
            lambda_mean=lambdas.mean().item(), lambda_std=lambdas.std(correction=0).item(), **values
        )
    return values
