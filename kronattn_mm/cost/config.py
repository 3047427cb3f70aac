"""Build the model of a config of any OpenMMLab library: without data, without trained weights."""

import contextlib
import difflib
import importlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from ..environment import check_mmcv

# The size of pictures where a config does not say: of the efficient-attention paper for
# detectors, and what the libraries' own tools assume for the others.
_DEFAULT_SHAPES = {'mmseg': (512, 512), 'mmpretrain': (224, 224)}
_DETECTOR_SHAPE = (896, 1280)


class ConfigError(ValueError):
    """A config that no model can be made of; the message says which and why."""


def load_model(
    path: str | Path, cfg_options: dict[str, Any] | None = None
) -> tuple[nn.Module, Config]:
    """Build the model of a config under the config's own default scope.

    Nothing is downloaded and nothing is initialised: ``init_cfg`` and ``pretrained`` that name
    trained weights are cleared. What upstream code logs or prints meanwhile is dropped.

    Args:
        path (str or Path): Config file of mmdet, mmseg, mmpretrain or a library like them, or the
            name of one that such a library ships, such as ``mmdet::ssd/ssd300_coco.py``.
        cfg_options (dict, optional): Entries that replace those of the file, by dotted name.

    Returns:
        tuple[nn.Module, Config]: The model, on the CPU, and the config.

    Raises:
        ConfigError: If the file is missing or is not a config, or its model cannot be built.
        ImportError: If the library of the config is not installed (the message has the remedy).
    """
    config = load_config(path, cfg_options)
    model = config.get('model')
    if not isinstance(model, dict) or 'type' not in model:
        raise ConfigError(f'{path} has no model (a dict `model` with a `type`)')
    scope = config.get('default_scope')
    if scope is not None:
        _import_library(scope)
    without_weights(model)
    with quiet(), _default_scope(scope):
        try:
            built = MODELS.build(model)
        except Exception as error:  # whatever a constructor of any library raises
            raise ConfigError(f'the model of {path} cannot be built: {_one_line(error)}') from error
    return built, config


def load_config(path: str | Path, cfg_options: dict[str, Any] | None = None) -> Config:
    """Read a config file, or a library's own by its name, such as ``mmdet::ssd/ssd300_coco.py``.

    Raises:
        ConfigError: If the file is missing, or cannot be read as a config.
    """
    path = config_file(path)
    try:
        with quiet():
            config = Config.fromfile(path)
            if cfg_options:
                config.merge_from_dict(cfg_options)
    except Exception as error:  # a text config is Python and can fail in any way
        raise ConfigError(f'{path} cannot be read as a config: {_one_line(error)}') from error
    return config


def config_file(path: str | Path) -> Path:
    """Return the file of a config; ``<package>::<file>`` is one that an installed library ships.

    Raises:
        ConfigError: If it does not exist; the message names the nearest that does.
    """
    package, separator, name = str(path).partition('::')
    if not separator:
        if Path(path).is_file():
            return Path(path)
        folder = Path(path).parent
        near = (
            difflib.get_close_matches(
                Path(path).name, [child.name for child in folder.glob('*.py')], n=1
            )
            if folder.is_dir()
            else []
        )
        hint = f'; did you mean {folder / near[0]}?' if near else ''
        raise ConfigError(f'there is no config file {path}{hint}')
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or spec.origin is None:
        raise ConfigError(f'{path}: {package!r} is not installed')
    root = Path(spec.origin).parent
    folders = [root / '.mim' / 'configs', root.parent / 'configs']
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    names = [
        file.relative_to(folder).as_posix()
        for folder in folders[:1]
        for file in folder.rglob('*.py')
    ]
    by_stem = {Path(file).name: file for file in names}
    near = difflib.get_close_matches(Path(name).name, by_stem, n=1)
    hint = f'; did you mean {package}::{by_stem[near[0]]}?' if near else ''
    raise ConfigError(f'{package} has no config {name}{hint}')


def without_weights(config: Any) -> None:
    """Clear, in place, what would load trained weights when a model is built or initialised."""
    if isinstance(config, (list, tuple)):
        for item in config:
            without_weights(item)
    if not isinstance(config, dict):
        return
    init = config.get('init_cfg')
    if isinstance(init, dict) and init.get('type') == 'Pretrained':
        config['init_cfg'] = None
    if isinstance(config.get('pretrained'), bool):
        config['pretrained'] = False
    for key in ('pretrained', 'teacher_ckpt'):
        if isinstance(config.get(key), str):
            config[key] = None
    for value in config.values():
        without_weights(value)


def default_image_shape(config: Config) -> tuple[tuple[int, int], str]:
    """Find out how large the pictures are that the model of a config is tested on.

    Args:
        config (Config): A whole config.

    Returns:
        tuple[tuple[int, int], str]: Height and width in pixels, and where they come from.
    """
    size, source = None, ''
    for transform in _test_pipeline(config):
        name = str(transform.get('type', '')).rpartition('.')[2]
        for word, key in (('Resize', 'scale'), ('CenterCrop', 'crop_size')):
            given = _width_and_height(transform.get(key))
            if name.endswith(word) and given is not None:
                size = given
                largest = ', the largest it makes' if transform.get('keep_ratio') else ''
                source = f'{name} to width {size[0]}, height {size[1]}{largest}'
    if size is None:
        scope = config.get('default_scope')
        shape = _DEFAULT_SHAPES.get(scope, _DETECTOR_SHAPE)
        return shape, f'default for {scope or "detectors"}, the test pipeline says no size'
    height, width = size[1], size[0]
    divisor = config.get('model', {}).get('data_preprocessor') or {}
    divisor = divisor.get('pad_size_divisor') or 1
    if height % divisor or width % divisor:
        height, width = -(-height // divisor) * divisor, -(-width // divisor) * divisor
        source += f', padded to multiples of {divisor}'
    return (height, width), f'test pipeline: {source}'


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop what upstream code prints, logs and warns of."""
    MMLogger.get_current_instance()  # made inside, it would hold the replaced stdout for ever
    before = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter('ignore')
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


def _import_library(scope: str) -> None:
    if scope in ('mmdet', 'mmrotate', 'mmyolo'):
        check_mmcv()
    try:
        with quiet():
            importlib.import_module(scope)
    except ImportError as error:
        raise ImportError(
            f'the config is one of {scope}, which cannot be imported: {_one_line(error)}'
        ) from error


def _default_scope(scope: str | None) -> contextlib.AbstractContextManager:
    return DefaultScope.overwrite_default_scope(scope)


def _test_pipeline(config: Config) -> Sequence[dict]:
    dataset = (config.get('test_dataloader') or {}).get('dataset') or {}
    while isinstance(dataset, dict) and 'pipeline' not in dataset:
        inner = dataset.get('dataset') or dataset.get('datasets')
        dataset = inner[0] if isinstance(inner, (list, tuple)) and inner else inner
    pipeline = dataset.get('pipeline') if isinstance(dataset, dict) else None
    pipeline = pipeline or config.get('test_pipeline') or []
    return [transform for transform in pipeline if isinstance(transform, dict)]


def _width_and_height(size: Any) -> tuple[int, int] | None:
    if isinstance(size, int):
        return size, size
    if (
        isinstance(size, (tuple, list))
        and len(size) == 2
        and all(isinstance(side, int) for side in size)
    ):
        return size[0], size[1]
    return None


def _one_line(error: Exception) -> str:
    text = ' '.join(str(error).split())
    return text or type(error).__name__
