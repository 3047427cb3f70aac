"""What the commands on checkpoints share: reading, writing, and proof that two models are equal."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope
from torch import Tensor, nn

from ..cost.command_line import ConfigOptions
from ..cost.config import ConfigError, load_model, quiet
from .show import UserError, build_pipeline, check_images

_COUNTER = '.num_batches_tracked'


@dataclass(frozen=True)
class Difference:
    """How far the outputs of two models are apart for one image.

    Attributes:
        image: The file.
        largest: Largest absolute difference of any output; infinite where the numbers of outputs
            (of proposals, for example) differ.
        scale: Largest absolute value of the first model's outputs.
    """

    image: str
    largest: float
    scale: float


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --images, --tolerance, --json and --cfg-options."""
    parser.add_argument(
        '--images',
        nargs='+',
        metavar='IMAGE',
        default=[],
        help='photographs on which the outputs of both models are compared',
    )
    parser.add_argument(
        '--tolerance',
        type=float,
        default=0.0,
        metavar='T',
        help='largest difference that still passes, in the units of the outputs '
        '(default: %(default)s, bit for bit)',
    )
    parser.add_argument('--json', action='store_true', help='print JSON instead of text')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help='replace entries of the config, such as model.backbone.depth=101',
    )


def run_command(program: str, function: Callable[[], int]) -> int:
    """Call a command; a mistake of the user is one sentence and exit code 2."""
    try:
        return function()
    except (ConfigError, ImportError, UserError, ValueError, TypeError) as error:
        print(f'{program}: error: {" ".join(str(error).split())}', file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read the result has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, for example: nobody's mistake
        print(f'{program}: error: {error}', file=sys.stderr)
        return 1


def say(text: str) -> None:
    """Tell what is being done, where it does not get into the way of the result."""
    print(text, file=sys.stderr, flush=True)


def built(path: str, options: Mapping[str, Any] | None) -> tuple[nn.Module, Config]:
    """Build the model of a config, in eval mode and with the same random weights each time."""
    say(f'building the model of {path} ...')
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, config = load_model(path, options)
    model.eval()
    return model, config


def check_files(output: Path, inputs: Iterable[str | None], images: Sequence[str]) -> None:
    """Find out what is wrong with the files named before anything is computed or written.

    Args:
        output (Path): File to write.
        inputs (Iterable[str or None]): Files that are read, which it must not replace.
        images (Sequence[str]): Files of photographs.

    Raises:
        UserError: If ``output`` is a folder or one of ``inputs``, or an image cannot be read.
    """
    if output.is_dir():
        raise UserError(f'{output} is a folder; name the file to write')
    for path in inputs:
        if path is not None and output.exists() and Path(path).exists() and output.samefile(path):
            raise UserError(f'{output} is the file {path} that is read; name another file')
    check_images(images)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint; ``state_dict`` is among its keys whatever it was written by.

    Raises:
        UserError: If the file is missing, damaged, or holds no state dict.
    """
    from mmengine.runner import CheckpointLoader

    if '://' not in str(path) and not Path(path).is_file():
        raise UserError(f'there is no checkpoint {path}')
    try:
        with quiet():
            content = CheckpointLoader.load_checkpoint(
                str(path), map_location='cpu', logger='silent'
            )
    except Exception as error:  # what unpickling garbage raises is anybody's guess
        # Of an empty file, for example, the error has no words.
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(
            f'{path} cannot be read as a checkpoint, it may be truncated or another '
            f'kind of file: {reason}'
        ) from error
    if isinstance(content, Mapping) and 'state_dict' not in content:
        content = dict(state_dict=content)
    state = content['state_dict'] if isinstance(content, Mapping) else None
    if (
        not isinstance(state, Mapping)
        or not state
        or not all(isinstance(key, str) for key in state)
        or not all(isinstance(value, Tensor) for value in state.values())
    ):
        raise UserError(f'{path} holds no state_dict')
    state = {key.removeprefix('module.'): value for key, value in state.items()}
    return {**content, 'state_dict': state}


def load_exactly(
    model: nn.Module, state: Mapping[str, Tensor], name: str, but: Iterable[str] = ()
) -> None:
    """Load a state dict that has to fit.

    Args:
        model (nn.Module): The model.
        state (Mapping): What to load. It may lack counts of batches, as old ones do.
        name (str): What it is, for messages.
        but (Iterable[str]): Keys of the model that it need not have.

    Raises:
        UserError: If a key is missing, unknown or has another shape.
    """
    wanted = model.state_dict()
    optional = set(but)
    missing = [
        key
        for key in wanted
        if key not in state and key not in optional and not key.endswith(_COUNTER)
    ]
    unknown = [key for key in state if key not in wanted]
    wrong = [
        f'{key} is {tuple(state[key].shape)} there and {tuple(value.shape)} in the model'
        for key, value in wanted.items()
        if key in state and state[key].shape != value.shape
    ]
    for found, what in (
        (wrong, 'tensors of another shape'),
        (missing, 'keys missing'),
        (unknown, 'keys that the model does not have'),
    ):
        if found:
            raise UserError(
                f'{name} does not fit the config: {len(found)} {what}, such as {found[0]}'
            )
    model.load_state_dict(state, strict=False)


def write_checkpoint(content: Mapping[str, Any], path: str | Path) -> None:
    """Write a checkpoint under a temporary name, and rename it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f'.{path.name}.{os.getpid()}.part')
    try:
        torch.save(dict(content), part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def compare(
    first: nn.Module, second: nn.Module, config: Config, images: Sequence[str]
) -> list[Difference]:
    """Compare what two models make of photographs, before any thresholds or suppression.

    Args:
        first (nn.Module): A model of mmdet, mmseg or mmpretrain, in eval mode.
        second (nn.Module): Another.
        config (Config): Config with the test pipeline for both.
        images (Sequence[str]): Files.

    Raises:
        UserError: If an image cannot be read or the config has no test pipeline.
    """
    from mmengine.dataset import pseudo_collate
    from tqdm import tqdm

    check_images(images)
    rows = []
    with DefaultScope.overwrite_default_scope(config.get('default_scope')):
        with quiet():
            pipeline = build_pipeline(config, config.filename)
        for image in tqdm(images, 'comparing', unit='image', disable=None):
            batch = pseudo_collate([pipeline(dict(img_path=image, img_id=0))])
            left, right = _outputs(first, batch), _outputs(second, batch)
            scale = max((float(tensor.abs().max()) for tensor in left if tensor.numel()), default=0)
            rows.append(Difference(image, _largest(left, right), scale))
    return rows


def verdict(rows: Sequence[Difference], tolerance: float, what: str) -> tuple[str, bool]:
    """Say in a line how far two models are apart, and whether that passes."""
    worst = max(row.largest for row in rows)
    passed = worst <= tolerance
    text = (
        'bit for bit equal'
        if worst == 0
        else f'largest difference {worst:.3g} (outputs up to {max(row.scale for row in rows):.3g})'
    )
    return (
        f'{what}: {text} on {len(rows)} image{"s" * (len(rows) > 1)}'
        + ('' if passed else f', above the tolerance of {tolerance:g}')
    ), passed


def as_dicts(rows: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return differences as plain dicts, fit for JSON; infinite ones are None."""
    return [
        {**asdict(row), 'largest': row.largest if row.largest != float('inf') else None}
        for row in rows
    ]


@torch.no_grad()
def _outputs(model: nn.Module, batch: Any) -> list[Tensor]:
    import copy

    data = model.data_preprocessor(copy.deepcopy(batch), False)
    if isinstance(data, dict):
        return _tensors(model(**data, mode='tensor'))
    return _tensors(model(*data, mode='tensor'))


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, (list, tuple)):
        return [tensor for item in output for tensor in _tensors(item)]
    return []


def _largest(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    if [tensor.shape for tensor in left] != [tensor.shape for tensor in right]:
        return float('inf')
    differences = [
        float((a - b).abs().max()) for a, b in zip(left, right, strict=True) if a.numel()
    ]
    return max((float('inf') if value != value else value for value in differences), default=0.0)
