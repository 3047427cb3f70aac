"""Write the small file of the inserted layers beside every checkpoint."""

import dataclasses
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from ..layers.arguments import boolean
from ..plugging.base_identity import base_state, digests, norm_keys
from ..plugging.removal import added_keys
from ..plugging.small_file import (
    SmallFile,
    SmallFileError,
    check_safetensors,
    extract_attention,
    keys_of_modules,
)
from ..plugging.spec import spec_of
from ..plugging.switching import unwrapped
from ..registry import HOOKS

_START = 'kronattn_mm_base'


@HOOKS.register_module()
class SmallFileHook(Hook):
    """Write ``epoch_12_attention.safetensors`` beside ``epoch_12.pth``, and so for each checkpoint.

    The weights are those that the checkpoint has under ``state_dict``: the averaged ones where an
    ``EMAHook`` runs. The metrics of the validation that follows are added to the file. Files of
    checkpoints that mmengine removes (``max_keep_ckpts``) are removed with them. Checkpoints that
    do not go to a local folder get no file.

    What moved of the base is found out by comparison with the weights at the start of training,
    which the checkpoints remember (as SHA-256) for when the run is resumed.

    Args:
        also (Sequence[str]): Modules of the base to put into the file; see
            :func:`kronattn_mm.extract_attention`.
        include_norms (bool): Put the base's batch norms into the file. Defaults to False.
        allow_moved (bool): Write files although the base is trained too, so that a file alone does
            not give the trained model back. Defaults to False.
        licence (str): Licence of the weights, to be written into the file.

    Raises:
        TypeError: If an argument has the wrong type; that of ``also`` at the start of the run.
        ValueError: At the start of the run: nothing is inserted, a layer's class is not
            registered, a module of ``also`` is not there, or the base is trained too and
            ``allow_moved`` is not set.
    """

    # After CheckpointHook (VERY_LOW) has saved, and after EMAHook has swapped the weights.
    priority = 'LOWEST'

    def __init__(
        self,
        also: Sequence[str] = (),
        include_norms: bool = False,
        allow_moved: bool = False,
        licence: str = 'not stated',
    ) -> None:
        if not isinstance(licence, str):
            raise TypeError(f'licence must be a text, got {licence!r}')
        self.options = dict(
            also=also,
            include_norms=boolean('include_norms', include_norms),
            allow_moved=boolean('allow_moved', allow_moved),
            licence=licence,
        )
        self._start: Mapping[str, str] | None = None
        self._content: SmallFile | None = None
        self._times: dict[Path, int] = {}
        self._files: dict[Path, Path] = {}
        self._latest: list[Path] = []

    def before_run(self, runner: Runner) -> None:
        """Find out what cannot be written before anything has been trained."""
        check_safetensors()
        model = unwrapped(runner.model)
        if not added_keys(model):
            raise ValueError(f'SmallFileHook: nothing is inserted into this {type(model).__name__}')
        spec_of(model)
        keys_of_modules(base_state(model), self.options['also'], type(model).__name__)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Remember, on resuming, from which weights the run had started."""
        if runner._resume:
            self._start = checkpoint.get(_START)

    def before_train(self, runner: Runner) -> None:
        """Write down from which weights training starts, and refuse a trained base."""
        model = unwrapped(runner.model)
        self._check_frozen(model)
        if not runner._resume:
            self._start = digests(base_state(model))
        for path in self._checkpoints(runner):
            self._times[path] = path.stat().st_mtime_ns

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Take the layers out of a checkpoint that is about to be written."""
        checkpoint[_START] = self._start
        try:
            self._content = extract_attention(
                unwrapped(runner.model),
                config=Path(runner.cfg.get('filename') or '').name,
                plain=self._start,
                state=checkpoint['state_dict'],
                **self.options,
            )
        except SmallFileError as error:
            # Training goes on: the checkpoint itself has everything.
            runner.logger.warning(f'SmallFileHook writes no file: {error}')
            self._content = None

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Metrics that are measured from now on are those of other weights."""
        self._content = None
        self._latest = []

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Write, if a checkpoint was saved after this iteration."""
        self._write(runner)

    def after_train_epoch(self, runner: Runner) -> None:
        """Write, if a checkpoint was saved after this epoch."""
        self._write(runner)

    def after_val_epoch(self, runner: Runner, metrics: Mapping[str, Any] | None = None) -> None:
        """Write beside the best checkpoint, and add the metrics to what has the same weights."""
        if self._content is None:
            return
        self._content = dataclasses.replace(
            self._content,
            metrics={
                name: float(value)
                for name, value in (metrics or {}).items()
                if isinstance(value, Real)
            },
        )
        self._write(runner)
        for path in self._latest:
            self._content.save(path)

    def _check_frozen(self, model: Any) -> None:
        if self.options['allow_moved']:
            return
        covered = set(added_keys(model))
        if self.options['include_norms']:
            covered |= norm_keys(model)
        also = tuple(f'{module}.' for module in self.options['also'])
        trained = [
            name
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and name not in covered and not name.startswith(also)
        ]
        if trained:
            raise ValueError(
                f'SmallFileHook: {len(trained)} parameters of the base are trained too, such as '
                f'{trained[0]}, so a file of the inserted layers would not give the trained model '
                'back; freeze them (kronattn_mm.FreezeHook), name their modules in `also`, or set '
                'allow_moved=True'
            )

    def _write(self, runner: Runner) -> None:
        if self._content is None:
            return
        for checkpoint in self._checkpoints(runner):
            time = checkpoint.stat().st_mtime_ns
            if self._times.get(checkpoint) == time:
                continue
            self._times[checkpoint] = time
            path = checkpoint.with_name(f'{checkpoint.stem}_attention.safetensors')
            self._content.save(path)
            self._files[checkpoint] = path
            self._latest.append(path)
        for checkpoint in [path for path in self._files if not path.exists()]:
            self._files.pop(checkpoint).unlink(missing_ok=True)

    def _checkpoints(self, runner: Runner) -> list[Path]:
        """Return the local files that CheckpointHook says it wrote last."""
        names = [
            value
            for name, value in runner.message_hub.runtime_info.items()
            if (name == 'last_ckpt' or name.startswith('best_ckpt')) and isinstance(value, str)
        ]
        return [Path(name) for name in names if Path(name).is_file()]
