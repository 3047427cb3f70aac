"""The data sets of a config: those that read files, out of whatever wraps them."""

import importlib
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, DefaultScope

from ..cost.config import ConfigError, quiet
from ..environment import check_mmcv

SPLITS = ('train', 'val', 'test')
_LIBRARIES = ('mmdet', 'mmseg', 'mmpretrain')


@dataclass(frozen=True)
class Entry:
    """A data set of a config.

    Attributes:
        name: Where it stands: ``'train'``, or ``'train.datasets.1'`` inside a wrapper.
        split: ``'train'``, ``'val'`` or ``'test'``.
        config: Its part of the config.
        masks: Whether its pipeline loads masks.
    """

    name: str
    split: str
    config: dict[str, Any]
    masks: bool


def entries_of(config: Config, split: str) -> list[Entry]:
    """The data sets of a split that read files; empty where the config has no such split.

    RepeatDataset, ConcatDataset, ClassBalancedDataset, MultiImageMixDataset, KFoldDataset and
    wrappers like them have another data set in ``dataset`` or several in ``datasets``.

    Raises:
        ConfigError: The split has a data loader without a data set, or with one that is no dict.
    """
    loader = config.get(f'{split}_dataloader')
    if not loader:
        return []
    dataset = loader.get('dataset')
    if not isinstance(dataset, dict):
        raise ConfigError(f'{split}_dataloader has no dict `dataset`')
    return list(_unwrapped(dataset, split, split, False))


def _unwrapped(config: Any, name: str, split: str, masks: bool) -> Iterator[Entry]:
    if not isinstance(config, dict):
        raise ConfigError(f'{name} is {config!r}; a data set is a dict')
    steps = config.get('pipeline') or []
    masks = masks or any(isinstance(step, dict) and step.get('with_mask') for step in steps)
    if isinstance(config.get('dataset'), dict):
        yield from _unwrapped(config['dataset'], f'{name}.dataset', split, masks)
    elif isinstance(config.get('datasets'), (list, tuple)):
        for number, inner in enumerate(config['datasets']):
            yield from _unwrapped(inner, f'{name}.datasets.{number}', split, masks)
    else:
        yield Entry(name, split, config, masks)


def missing_paths(entry: Entry) -> list[tuple[str, str]]:
    """What a data set needs and what is not there.

    Returns:
        list[tuple[str, str]]: Paths, each with the sentence of what it is and how to name another.

    Raises:
        ConfigError: The data is not a matter of files (another storage), or its root is no path.
    """
    root = entry.config.get('data_root') or ''
    if not isinstance(root, str):
        raise ConfigError(f'{entry.name}: data_root is {root!r}; it must be the path of a folder')
    named = {'ann_file': entry.config.get('ann_file')}
    prefix = entry.config.get('data_prefix')
    named.update(prefix if isinstance(prefix, dict) else {'data_prefix': prefix})
    paths = {key: os.path.join(root, value) for key, value in named.items() if _is_path(value)}
    remote = next((path for path in [root, *paths.values()] if '://' in path), None)
    if remote is not None:
        raise ConfigError(f'{entry.name}: {remote} is no file here; only files can be checked')
    loader = f'{entry.split}_dataloader.{entry.name.replace(entry.split, "dataset", 1)}'
    remedy = f'put the data there, or name another folder: --cfg-options {loader}.data_root=FOLDER'
    if root and not Path(root).expanduser().is_dir():
        return [(root, f'there is no such folder; {remedy}')]
    return [
        (path, f'there is no such {"file" if key == "ann_file" else "folder"}; {remedy}')
        for key, path in paths.items()
        if not Path(path).expanduser().exists()
    ]


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value != ''


def build(entry: Entry, scope: str | None) -> Any:
    """Build a data set without its pipeline and without reading its annotations.

    Raises:
        ConfigError: It cannot be built.
    """
    config = dict(entry.config, pipeline=[])
    if 'type' not in config:
        raise ConfigError('it has no `type`, the name of a class of data sets')
    with quiet(), DefaultScope.overwrite_default_scope(scope):
        try:
            kind = config['type']
            if isinstance(kind, str):
                with DATASETS.switch_scope_and_registry(None) as registry:
                    kind = registry.get(kind)
            if isinstance(kind, type) and issubclass(kind, BaseDataset):
                config['lazy_init'] = True
            if isinstance(kind, type) and is_kind(kind, 'CIFAR10'):
                config['download'] = False  # a check fetches nothing
            return DATASETS.build(config)
        except Exception as error:  # whatever a constructor of any library raises
            text = ' '.join(str(error).split()) or type(error).__name__
            raise ConfigError(text) from error


def import_library(scope: str | None) -> None:
    """Import the library whose data sets a config names.

    Raises:
        ImportError: It is not installed; the message says what to do.
    """
    if scope == 'mmdet':
        check_mmcv()
    if scope is not None:
        with quiet():
            importlib.import_module(scope)
            if importlib.util.find_spec(f'{scope}.datasets') is not None:
                importlib.import_module(f'{scope}.datasets')


def is_kind(kind: type, *names: str) -> bool:
    """Whether a class of data sets is, or comes from, one of these classes of the libraries."""
    return any(
        parent.__name__ in names and parent.__module__.partition('.')[0] in _LIBRARIES
        for parent in kind.__mro__
    )
