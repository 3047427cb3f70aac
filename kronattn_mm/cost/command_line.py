"""What the command-line tools of this package's cost share: arguments, image size, messages."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from mmengine.config import Config, DictAction
from torch import nn

from .config import ConfigError, default_image_shape, load_model, quiet
from .report import CostReport, cost_report


class Parser(argparse.ArgumentParser):
    """An argument parser whose error is one line, and whose help keeps its line breaks."""

    def __init__(self, description: str, example: str) -> None:
        super().__init__(
            description=description,
            epilog=f'example:\n  {example}',
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        self.exit(2, f'{self.prog}: error: {message} (--help shows how to call it)\n')


def positive_integer(text: str) -> int:
    """Read a whole number of at least 1: a ``type`` for argparse."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


positive_integer.__name__ = 'positive integer'  # argparse: "invalid positive integer value: '0'"


class ConfigOptions(DictAction):
    """mmengine's action for --cfg-options, to which a word without ``=`` is a mistake in words."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Sequence[str],
        option_string: str | None = None,
    ) -> None:
        for word in values:
            key, equals, _ = word.partition('=')
            if not key or not equals:
                raise argparse.ArgumentError(self, f'expected KEY=VALUE, got {word!r}')
        try:
            super().__call__(parser, namespace, values, option_string)
        except AssertionError as error:  # brackets that do not match
            raise argparse.ArgumentError(self, str(error)) from error


def add_model_arguments(parser: argparse.ArgumentParser, config_needed: bool = True) -> None:
    """Add CONFIG, --shape, --json and --cfg-options."""
    parser.add_argument(
        'config',
        metavar='CONFIG',
        nargs=None if config_needed else '?',
        help='config file of an mmdet, mmseg or mmpretrain model, or the name of '
        'one that they ship, such as mmdet::ssd/ssd300_coco.py',
    )
    parser.add_argument(
        '--shape',
        nargs=2,
        type=pixels,
        metavar=('H', 'W'),
        help='height and width of the image after resizing (default: what the '
        "config's test pipeline resizes to, or a common size; it is printed)",
    )
    parser.add_argument('--json', action='store_true', help='print JSON instead of a table')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help='replace entries of the config, such as model.backbone.depth=101',
    )


def model_of(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace
) -> tuple[nn.Module, Config, tuple[int, int], str]:
    """Build the model that the command line names.

    Returns:
        tuple[nn.Module, Config, tuple[int, int], str]: The model, its config, height and width of
        the image, and where they come from. Mistakes of the user end the program with one line and
        exit code 2.
    """
    print(f'building the model of {arguments.config} ...', file=sys.stderr)
    model, config = or_error(parser, load_model, arguments.config, arguments.cfg_options)
    return model, config, *_image_shape(arguments, config)


def report_of(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace
) -> tuple[CostReport, str, str]:
    """Build the model that the command line names and work out its costs.

    Returns:
        tuple[CostReport, str, str]: The report, the class of the model, and where the image size
        comes from. Mistakes of the user end the program with one line and exit code 2.
    """
    model, _, shape, source = model_of(parser, arguments)
    return or_error(parser, _quiet_report, model, shape), type(model).__name__, source


def _quiet_report(model: nn.Module, shape: tuple[int, int]) -> CostReport:
    with quiet():
        return cost_report(model, shape)


def _image_shape(arguments: argparse.Namespace, config: Config) -> tuple[tuple[int, int], str]:
    if arguments.shape is not None:
        return tuple(arguments.shape), '--shape'
    return default_image_shape(config)


def or_error(parser: argparse.ArgumentParser, function: Callable, *args: Any) -> Any:
    """Call a function; end the program with one line and exit code 2 if the user is mistaken."""
    try:
        return function(*args)
    except (ConfigError, ImportError, ValueError, TypeError) as error:
        parser.error(str(error))


def pixels(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(
            f'height and width must be positive integers, got {text!r}'
        )
    return value
