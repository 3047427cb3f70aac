"""A training run in small: a few batches through everything that a long run will need.

The library's own train.py and test.py do the work, on a copy of the config in which the data
loaders stop after a few batches (mmengine's ``num_batch_per_epoch``) and checkpoints are saved at
once. The schedule keeps its length, so that whatever looks at it sees the real one; a hook ends
the run. Everything is written to a temporary folder.
"""

import contextlib
import copy
import logging
import math
import re
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import EpochBasedTrainLoop, Runner

from ..registry import HOOKS

BATCHES = 2  # of training; one more after resuming


class DryRunError(RuntimeError):
    """A part of the run failed; the message says which and why."""


@dataclass
class Measured:
    """What a dry run found out.

    Attributes:
        steps: Seconds of each training step with its data.
        waits: Seconds of each of them that were spent waiting for data.
        validation: Seconds to predict one validation batch.
        total_steps: Training steps of the whole schedule.
        validations: Validations in the whole schedule.
        validation_batches: Batches of one validation.
        memory: What training and validation took, in words.
        status: The table of inserted layers.
    """

    steps: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    validation: float | None = None
    total_steps: int = 0
    validations: int = 0
    validation_batches: int = 0
    memory: str = ''
    status: str = ''


_measured = Measured()  # what the hook of the run in this process writes to


@HOOKS.register_module()
class DryRunMeter(Hook):
    """Time the steps, work out how many a whole run has, and end this one after a few."""

    priority = 'VERY_LOW'

    def __init__(self, stop_after: int) -> None:
        self.stop_after = stop_after

    def before_train(self, runner: Runner) -> None:
        self._begin = self._end = time.perf_counter()
        self._start = runner.iter
        loop = runner.train_loop
        batches = whole_batches(loop.dataloader)
        by_epoch = isinstance(loop, EpochBasedTrainLoop)
        _measured.total_steps = loop.max_epochs * batches if by_epoch else loop.max_iters
        if runner.val_loop is not None:
            _measured.validation_batches = whole_batches(runner.val_dataloader)
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        from ..listing.status import status_text

        _measured.status = status_text(model)

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        self._begin = time.perf_counter()

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        _measured.steps.append(now - self._end)
        _measured.waits.append(self._begin - self._end)
        self._end = now
        if runner.iter - self._start + 1 >= self.stop_after:
            runner.train_loop.stop_training = True

    def before_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        self._val_begin = time.perf_counter()

    def after_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if runner.train_loop is not None and _measured.validation is None:
            _measured.validation = time.perf_counter() - self._val_begin


def whole_batches(loader: Any) -> int:
    """How many batches a loader would have that ``num_batch_per_epoch`` had not cut short."""
    dataset = loader.dataset
    whole = getattr(dataset, '_dataset', dataset)
    sampler = getattr(loader, 'batch_sampler', None)
    size = getattr(sampler, 'batch_size', None) or loader.batch_size or 1
    return math.ceil(len(whole) / size)


def dry_run(tools: Callable[[str], ModuleType], config: Config, arguments: Sequence[str]) -> None:
    """Go through a whole run with a few batches and print what a long one would need.

    Args:
        tools: Returns the library's ``train.py`` or ``test.py`` as a module.
        config (Config): The config, with the options of the command line.
        arguments (Sequence[str]): The other arguments of ``train.py``.

    Raises:
        DryRunError: If something fails, or the config cannot be run in small.
    """
    if {'--resume', '--launcher'} & {word.partition('=')[0] for word in arguments}:
        raise DryRunError(
            '--dry-run starts a run of its own in one process; leave out --resume and --launcher'
        )
    global _measured
    _measured = Measured(validations=_validations(config))
    other = [word for word in arguments if word != '--dry-run']
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix='dry_run_') as folder:
        work_dir = Path(folder) / 'run'
        files = [
            _write(config, Path(folder) / f'{name}.py', stop, train)
            for name, stop, train in (('first', BATCHES, BATCHES), ('second', 1, BATCHES))
        ]
        train, test = tools('train.py'), tools('test.py')
        log = Path(folder) / 'output.log'
        step = f'{BATCHES} training batches, validation, checkpoint'
        with _phase(step, log):
            _call(train, [files[0], *other, '--work-dir', work_dir])
            _last_checkpoint(work_dir)
        _measured.memory = _memory()
        first = copy.deepcopy(_measured)
        with _phase('one more batch, resumed from it', log):
            _call(train, [files[1], *other, '--work-dir', work_dir, '--resume'])
            checkpoint = _last_checkpoint(work_dir)
        if config.get('test_dataloader') is not None:
            with _phase('test of it', log):
                _call(test, [files[0], checkpoint, '--work-dir', Path(folder) / 'test'])
    print('\n' + report(first, time.perf_counter() - begin))


def report(measured: Measured, seconds: float) -> str:
    """Lay out what was measured, and how the length of the whole run follows from it."""
    step, wait = measured.steps[-1], measured.waits[-1]
    lines = [
        'inserted layers (no image size given):',
        measured.status,
        '',
        measured.memory,
        f'one training step: {step:.2f} s, of which {wait:.2f} s waiting for data '
        f'(the first took {measured.steps[0]:.2f} s)',
    ]
    whole = step * measured.total_steps
    sums = [f'{measured.total_steps:,} steps x {step:.2f} s']
    if measured.validation is not None and measured.validations:
        batches = measured.validations * measured.validation_batches
        whole += batches * measured.validation
        sums.append(
            f'{measured.validations} validations x {measured.validation_batches:,} '
            f'batches x {measured.validation:.2f} s'
        )
    lines += [
        f'the whole schedule: about {_duration(whole)} on one such process',
        f'    = {" + ".join(sums)}',
        '    (the last of the steps above; without saving and computing metrics)',
        f'dry run: everything works; it took {seconds:.0f} s and left nothing behind',
    ]
    return '\n'.join(lines)


def _memory() -> str:
    if torch.cuda.is_available():
        return (
            f'peak memory on the GPU: {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB '
            'in tensors'
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == 'darwin' else 1024
    )
    return (
        f'peak memory: {peak / 2**30:.2f} GiB resident in this process, libraries included '
        '(without data workers)'
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f'{seconds:.0f} s'
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 48:
        return f'{hours} h {minutes:02} min' if hours else f'{minutes} min'
    return f'{hours / 24:.1f} days'


# ---------------------------------------------------------------- the config of a small run


def _validations(config: Config) -> int:
    train = config.get('train_cfg') or {}
    length = train.get('max_epochs') or train.get('max_iters') or 0
    interval = train.get('val_interval', 1)
    begin = train.get('val_begin', 1)
    if config.get('val_dataloader') is None or not length:
        return 0
    # Each multiple of the interval from the first one allowed, and the end.
    return len({*range(interval, length + 1, interval), length} - set(range(begin)))


def _write(config: Config, path: Path, stop_after: int, batches: int) -> Path:
    """Write the config of a run of a few batches."""
    small = Config(
        config._cfg_dict.to_dict()
        if hasattr(config._cfg_dict, 'to_dict')
        else dict(config._cfg_dict)
    )
    train = small.get('train_cfg')
    if not train or small.get('train_dataloader') is None:
        raise DryRunError('the config has no train_cfg or no train_dataloader')
    by_epoch = (
        train.get('by_epoch', 'max_epochs' in train)
        if 'type' not in train
        else 'Epoch' in str(train['type'])
    )
    small.train_dataloader['num_batch_per_epoch'] = batches
    for name in ('val_dataloader', 'test_dataloader'):
        for loader in _as_list(small.get(name)):
            loader['num_batch_per_epoch'] = 1
    train.update(val_begin=1, val_interval=1 if by_epoch else stop_after)
    train.pop('dynamic_intervals', None)
    hooks = small.setdefault('default_hooks', {})
    checkpoint = hooks.get('checkpoint') or dict(type='CheckpointHook')
    checkpoint.update(interval=1 if by_epoch else stop_after, by_epoch=by_epoch, save_begin=0)
    checkpoint.pop('published_keys', None)
    hooks['checkpoint'] = checkpoint
    small.custom_hooks = [
        *(small.get('custom_hooks') or []),
        dict(type='kronattn_mm.DryRunMeter', stop_after=stop_after),
    ]
    # Nothing of a rehearsal goes to a service.
    for owner in (small, small.get('visualizer') or {}):
        if owner.get('vis_backends'):
            owner['vis_backends'] = [dict(type='LocalVisBackend')]
    small.dump(str(path))
    return path


def _as_list(loaders: Any) -> list:
    if loaders is None:
        return []
    return list(loaders) if isinstance(loaders, (list, tuple)) else [loaders]


# ---------------------------------------------------------------- running the library's tools


def _call(tool: ModuleType, arguments: Sequence[str | Path]) -> None:
    before = sys.argv
    sys.argv = [tool.__file__, *map(str, arguments)]
    try:
        tool.main()
    finally:
        sys.argv = before


@contextlib.contextmanager
def _phase(name: str, log: Path) -> Iterator[None]:
    """Say what is going on; on failure, say why in one sentence, after the end of the traceback."""
    print(f'dry run: {name} ... ', end='', flush=True)
    begin = time.perf_counter()
    handlers = list(logging.root.handlers)
    try:
        with (
            open(log, 'a', encoding='utf-8') as file,
            contextlib.redirect_stdout(file),
            contextlib.redirect_stderr(file),
        ):
            yield
    except SystemExit as stop:
        print('failed', flush=True)
        if stop.code in (0, None):
            raise
        said = log.read_text(encoding='utf-8', errors='replace').strip().splitlines()
        raise DryRunError(f'dry run failed in: {name}: {said[-1] if said else stop}') from stop
    except Exception as error:
        print('failed', flush=True)
        frames = ''.join(traceback.format_exception(error)[-6:])
        print(frames.rstrip(), file=sys.stderr)
        text = re.sub(r'\s+', ' ', str(error)).strip() or 'no message'
        raise DryRunError(f'dry run failed in: {name}: {type(error).__name__}: {text}') from error
    finally:
        logging.root.handlers[:] = handlers
    print(f'ok, {time.perf_counter() - begin:.0f} s', flush=True)


def _last_checkpoint(work_dir: Path) -> Path:
    marker = work_dir / 'last_checkpoint'
    if not marker.is_file():
        raise DryRunError('no checkpoint was saved (the config has no CheckpointHook that does)')
    return Path(marker.read_text(encoding='utf-8').strip())
