"""Train one network of a study with mmengine's runner, from the configs of this package.

A run is a folder. Its ``result.json`` is written when everything in it is finished; a folder
without one is resumed from its last checkpoint, and the hook ``EpochSeed`` makes what follows equal
to training that was never interrupted.
"""

import contextlib
import copy
import io
import json
import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import DefaultScope
from mmengine.runner import Runner

from ..visualization.report import read_scalars, write_text
from .arms import Arm

# The parts of a config that decide what is trained; two runs that agree in them are the same.
_SETTINGS = (
    'model',
    'data_preprocessor',
    'train_dataloader',
    'val_dataloader',
    'train_cfg',
    'optim_wrapper',
    'param_scheduler',
    'randomness',
)
METRIC = 'accuracy/top1'


class StudyError(Exception):
    """Something the user can put right, said in one line."""


@dataclass(frozen=True)
class Recipe:
    """What all runs of a study have in common.

    Args:
        configs (Path): Folder with ``mobilenetv2_<variant>_b128-200e_cifar10.py``.
        data (dict): Changes of the config for the data; see :func:`prepare_data`.
        epochs (int): Epochs; the schedule is shortened to them.
        options (dict): Further entries of the config by dotted names, which win over everything.
    """

    configs: Path
    data: dict[str, Any]
    epochs: int
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One training: an arm at a width from a seed."""

    arm: Arm
    width: float
    seed: int

    @property
    def name(self) -> str:
        """Such as ``'x0.35_sb-3_seed0'``; also the name of its folder."""
        return f'x{self.width:g}_{self.arm.slug}_seed{self.seed}'


def prepare_data(data: Path, unpacked: Path, unpack: Callable[[Path, Path], Any]) -> dict[str, Any]:
    """Find out how pictures are stored and return what a config needs for them.

    Args:
        data (Path): CIFAR-10's own folder (with ``cifar-10-batches-py``), a folder with
            ``train/<class>`` and ``test/<class>``, an ``.npz`` archive, or a folder with one.
        unpacked (Path): Where an archive is unpacked, unless it is there already.
        unpack (Callable): Unpacks an archive into a folder.

    Returns:
        dict: ``dataset`` (config without split), ``splits`` (what differs between them),
        ``num_classes``, and whether pictures are files.

    Raises:
        StudyError: If it is none of these.
    """
    if (data / 'cifar-10-batches-py').is_dir() or data.name == 'cifar-10-batches-py':
        root = data if (data / 'cifar-10-batches-py').is_dir() else data.parent
        return dict(
            dataset=dict(type='CIFAR10', data_root=str(root), download=False),
            splits=dict(train=dict(split='train'), test=dict(split='test')),
            num_classes=10,
            files=False,
        )
    archives = [data] if data.suffix == '.npz' else sorted(data.glob('*.npz'))
    if data.is_dir() and (data / 'train').is_dir():
        folder = data
    elif len(archives) == 1 and archives[0].is_file():
        if not unpacked.is_dir():
            unpack(archives[0], unpacked)
        folder = unpacked
    else:
        raise StudyError(
            f'{data} is no CIFAR-10 folder (with cifar-10-batches-py), no folder with '
            'train/<class> and test/<class>, and no .npz archive of pictures'
        )
    classes = _classes(folder / 'train')
    others = _classes(folder / 'test')
    if classes != others:
        raise StudyError(
            f'the classes in {folder}/train and {folder}/test differ: '
            f'{", ".join(sorted(set(classes) ^ set(others)))}'
        )
    return dict(
        dataset=dict(type='CustomDataset', data_root=str(folder), metainfo=dict(classes=classes)),
        splits=dict(train=dict(data_prefix='train'), test=dict(data_prefix='test')),
        num_classes=len(classes),
        files=True,
    )


def _classes(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise StudyError(f'there is no folder {folder}')
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if len(names) < 2:
        raise StudyError(f'{folder} has fewer than two folders of pictures, one for each class')
    return names


def run_config(recipe: Recipe, run: Run, work_dir: Path) -> Config:
    """Return the config of one run.

    Raises:
        StudyError: If the config file is missing or an option cannot be merged.
    """
    path = recipe.configs / f'mobilenetv2_{run.arm.variant}_b128-200e_cifar10.py'
    if not path.is_file():
        raise StudyError(f'there is no config file {path}')
    config = Config.fromfile(path)
    backbone = config.model.backbone
    backbone.widen_factor = run.width
    for entry in backbone.convs:
        entry.layer.update(run.arm.layer_arguments())
    _use_data(config, recipe.data)
    config.train_cfg.max_epochs = recipe.epochs
    for scheduler in config.param_scheduler:
        scheduler.update(end=recipe.epochs, T_max=recipe.epochs)
    # Two, because mmengine removes the oldest before the newest is complete.
    config.default_hooks.checkpoint.update(interval=1, max_keep_ckpts=2)
    config.randomness.update(seed=run.seed)
    config.env_cfg.cudnn_benchmark = False  # chooses other kernels in each process
    config.log_level = 'WARNING'
    config.work_dir = str(work_dir)
    config.resume = (work_dir / 'last_checkpoint').is_file()
    # mmengine keeps loggers by this name, of which a second run needs another.
    config.experiment_name = f'{run.name}_{os.getpid()}_{time.time_ns()}'
    if recipe.options:
        try:
            config.merge_from_dict(copy.deepcopy(recipe.options))
        except Exception as error:  # whatever a wrong dotted name runs into
            raise StudyError(f'--cfg-options cannot be merged into {path}: {error}') from error
    return config


def _use_data(config: Config, data: Mapping[str, Any]) -> None:
    config.model.head.num_classes = data['num_classes']
    config.data_preprocessor.update(num_classes=data['num_classes'], to_rgb=data['files'])
    for loader, split in ((config.train_dataloader, 'train'), (config.val_dataloader, 'test')):
        pipeline = loader.dataset.pipeline
        if data['files']:
            pipeline = [
                dict(type='LoadImageFromFile'),
                dict(type='Resize', scale=(32, 32)),
                *pipeline,
            ]
        # Replaced as a whole; merging would keep arguments of the other dataset.
        loader['dataset'] = dict(**data['dataset'], **data['splits'][split], pipeline=pipeline)
        # Workers have random states of their own, with which resuming is not exact.
        loader.update(num_workers=0, persistent_workers=False)
    config.test_dataloader = copy.deepcopy(config.val_dataloader)


def train_run(
    recipe: Recipe, run: Run, work_dir: Path, progress: Callable[[float], None]
) -> dict[str, Any]:
    """Train one run, or what is left of it, and return its result.

    Args:
        recipe (Recipe): What all runs have in common.
        run (Run): This run.
        work_dir (Path): Its folder.
        progress (Callable): Called with the epochs, or the fraction of one, that were done.

    Returns:
        dict: ``accuracy`` (of the last epoch, in percent), ``history`` (one dict an epoch),
        ``params``, ``seconds`` (in the process that finished it), and what the run is.

    Raises:
        StudyError: If the folder holds a run with other settings.
    """
    config = run_config(recipe, run, work_dir)
    settings = json.loads(
        json.dumps({key: config.get(key) for key in _SETTINGS}, sort_keys=True, default=str)
    )
    result = finished(work_dir, settings)
    if result is not None:
        progress(recipe.epochs)
        return result
    work_dir.mkdir(parents=True, exist_ok=True)
    write_text(work_dir / 'settings.json', json.dumps(settings, indent=2))
    start = time.monotonic()
    with _quiet():
        runner = Runner.from_cfg(config)
        runner.register_hook(_Progress(progress))
        runner.train()
        if not any(record['step'] == recipe.epochs for record in _validations(work_dir)):
            runner.val()  # the process had ended between the last checkpoint and the validation
    params = sum(parameter.numel() for parameter in runner.model.parameters())
    DefaultScope._instance_dict.clear()
    history = [_epoch(record) for record in _validations(work_dir)]
    result = dict(
        run=run.name,
        variant=run.arm.variant,
        arm=run.arm.name,
        options=dict(run.arm.options),
        width=run.width,
        seed=run.seed,
        epochs=recipe.epochs,
        params=params,
        accuracy=history[-1]['accuracy'],
        history=history,
        seconds=round(time.monotonic() - start, 1),
    )
    write_text(work_dir / 'result.json', json.dumps(result, indent=2))
    return result


def finished(work_dir: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the result in a folder, None if there is none yet.

    Raises:
        StudyError: If the folder holds a run with other settings.
    """
    file = work_dir / 'settings.json'
    if not file.is_file():
        return None
    before = json.loads(file.read_text(encoding='utf-8'))
    different = [key for key in settings if settings[key] != before.get(key)]
    if different:
        raise StudyError(
            f'{work_dir} was trained with another {" and ".join(different)}; name '
            'another --out, or remove that folder'
        )
    file = work_dir / 'result.json'
    return json.loads(file.read_text(encoding='utf-8')) if file.is_file() else None


def _validations(work_dir: Path) -> list[dict[str, Any]]:
    with contextlib.suppress(FileNotFoundError):
        return read_scalars(work_dir)[1]
    return []


def _epoch(record: Mapping[str, Any]) -> dict[str, Any]:
    gates = {
        key.removeprefix('gate/'): value for key, value in record.items() if key.startswith('gate/')
    }
    return dict(epoch=record['step'], accuracy=record[METRIC], **gates)


@contextlib.contextmanager
def _quiet() -> Any:
    """Keep what mmengine prints while it builds and trains off the terminal; files have it."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter('ignore')
        yield


class _Progress(Hook):
    """Tells how many epochs were done."""

    def __init__(self, report: Callable[[float], None]) -> None:
        self.report = report

    def before_train(self, runner: Runner) -> None:
        self.report(runner.epoch)

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self.report(1 / len(runner.train_dataloader))
