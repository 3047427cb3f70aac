"""What the commands of this package share: arguments, report, files, exit code."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from torch import nn

from ..cost.command_line import ConfigOptions, Parser
from ..cost.config import ConfigError
from .checkpoint import Checkpoint, ConversionError, plain_meta, read_checkpoint, write_checkpoint
from .conversion import Conversion
from .report import report_dict, report_text, write_report
from .target import Fit, fit, target_model

Converter = Callable[[Checkpoint, nn.Module | None], Conversion]


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
    """Add CHECKPOINT, OUTPUT, and what goes for reading and writing."""
    parser.add_argument('checkpoint', metavar='CHECKPOINT', type=Path, help='file to convert')
    parser.add_argument(
        'output',
        metavar='OUTPUT',
        type=Path,
        nargs='?',
        help='file to write (not needed with --dry-run)',
    )
    parser.add_argument('--dry-run', action='store_true', help='do everything but write OUTPUT')
    parser.add_argument('--force', action='store_true', help='OUTPUT may exist')
    parser.add_argument('--verbose', action='store_true', help='list every key')
    parser.add_argument(
        '--report',
        type=Path,
        metavar='FILE',
        help='write what became of every key to FILE, as JSON',
    )
    parser.add_argument(
        '--trust-pickle',
        action='store_true',
        help='read a checkpoint that holds more than weights, numbers, text and '
        "mmengine's logs; it can then run any code of its author's",
    )
    parser.add_argument(
        '--entry',
        metavar='NAME',
        help='entry of the file that holds the weights, such as ema_state_dict '
        '(default: the usual ones)',
    )


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --config and what belongs to it."""
    parser.add_argument(
        '--config',
        metavar='CONFIG',
        help='config of the model that OUTPUT is for, or its name, such as '
        'mmdet::ssd/ssd300_coco.py; keys and shapes are then checked',
    )
    parser.add_argument(
        '--part',
        metavar='PATH',
        help='part of that model which OUTPUT is for, such as backbone; the keys '
        'of OUTPUT then begin there',
    )
    parser.add_argument(
        '--allow',
        nargs='+',
        default=[],
        metavar='KEY',
        help='keys that may be missing, left over (then dropped) or of another '
        'shape (then dropped): dotted paths, or patterns with *',
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help='replace entries of CONFIG',
    )


def run(
    parser: Parser, arguments: argparse.Namespace, convert: Converter, unwrap: bool = True
) -> int:
    """Read, convert, check, report, and write where nothing is wrong.

    Args:
        parser (Parser): For mistakes in the arguments, which end the program with code 2.
        arguments (argparse.Namespace): Of :func:`add_file_arguments` and
            :func:`add_target_arguments`.
        convert (Callable): Makes a conversion of a checkpoint and the target model, if any.
        unwrap (bool): Take away ``module.`` where it is before every key, as mmengine does when
            it loads. Defaults to True.

    Returns:
        int: 0, or 1 if the checkpoint cannot be converted; then nothing is written but the
        report that was asked for.
    """
    if arguments.output is None and not arguments.dry_run:
        parser.error('name an OUTPUT to write, or give --dry-run')
    if arguments.config is None:
        for name in ('part', 'allow', 'cfg_options'):
            if getattr(arguments, name):
                parser.error(f'--{name.replace("_", "-")} needs --config')
    try:
        _check_output(arguments)
        model = None
        if arguments.config is not None:
            print(f'building the model of {arguments.config} ...', file=sys.stderr)
            model = target_model(arguments.config, arguments.part, arguments.cfg_options)
        source = read_checkpoint(arguments.checkpoint, arguments.trust_pickle, arguments.entry)
        if unwrap:
            _unwrap(source)
        conversion = convert(source, model)
        for key in source.ignored:
            conversion.dropped[key] = 'not a tensor'
        found = None if model is None else fit(conversion, model, arguments.allow)
        meta, meta_dropped = plain_meta(source.meta)
        _report(arguments, source, conversion, found, meta_dropped)
        if found is not None and not found.ok:
            raise ConversionError(found.sentence(arguments.config))
        if not conversion.state:
            raise ConversionError(f'nothing of {source.path} is left')
        if arguments.dry_run:
            print('nothing was written (--dry-run)')
            return 0
        meta['converted_from'] = source.path.name
        write_checkpoint(arguments.output, conversion.state, conversion.versions(source), meta)
    except (ConversionError, ConfigError, ImportError) as error:
        print(f'{parser.prog}: error: {error}', file=sys.stderr)
        return 1
    print(f'written to {arguments.output}')
    return 0


def pairs(parser: Parser, option: str, values: list[str]) -> dict[str, str]:
    """Return ``OLD=NEW`` words as a dict; mistakes end the program with code 2."""
    found: dict[str, str] = {}
    for word in values:
        old, equals, new = word.partition('=')
        if not equals:
            parser.error(f'{option} takes OLD=NEW, got {word!r}')
        old, new = old.strip('.'), new.strip('.')
        if old in found:
            parser.error(f'{option} says twice what {old!r} becomes')
        found[old] = new
    return found


def _unwrap(source: Checkpoint) -> None:
    if all(key.startswith('module.') for key in source.state):
        source.state = {key.removeprefix('module.'): value for key, value in source.state.items()}
        source.versions = {
            path.removeprefix('module').removeprefix('.'): value
            for path, value in source.versions.items()
            if path
        }
        print('module. before every key was taken away')


def _check_output(arguments: argparse.Namespace) -> None:
    output = arguments.output
    if output is None or arguments.dry_run:
        return
    if output.is_dir():
        raise ConversionError(f'{output} is a folder; name the file to write')
    if output.exists() and arguments.checkpoint.exists() and output.samefile(arguments.checkpoint):
        raise ConversionError(f'{output} is the checkpoint itself; name another file')
    if output.exists() and not arguments.force:
        raise ConversionError(f'{output} exists; --force replaces it')


def _report(
    arguments: argparse.Namespace,
    source: Checkpoint,
    conversion: Conversion,
    found: Fit | None,
    meta_dropped: dict[str, str],
) -> None:
    report = report_dict(source, conversion, found, meta_dropped)
    print(report_text(report, found is not None, arguments.verbose))
    if arguments.report is not None:
        write_report(arguments.report, report)
