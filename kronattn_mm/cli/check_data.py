"""Check the data of a config before training: every annotation and every picture is read once.

Listed are files that are missing or cut off, boxes outside their picture, classes that the config
does not name, label maps with other values than classes, pictures that are both trained and tested
on, and what the libraries pass over in silence. Nothing is written but --out, nothing is
downloaded. Exit code 1 if there are errors, 0 if there are at most warnings.
"""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from ..cost.command_line import ConfigOptions, Parser, or_error, positive_integer

EXAMPLE = """kronattn check-data CONFIG.py
  kronattn check-data CONFIG.py --splits train --workers 8 --out data.json
  kronattn check-data CONFIG.py --cfg-options train_dataloader.dataset.data_root=data/mine/"""


def main(argv: list[str] | None = None) -> int:
    parser = Parser(__doc__, EXAMPLE)
    parser.add_argument(
        'config',
        metavar='CONFIG',
        help='config file of mmdet, mmseg or mmpretrain, or the name of one that they ship, such '
        'as mmdet::ssd/ssd300_coco.py',
    )
    parser.add_argument(
        '--splits',
        nargs='+',
        default=['train', 'val', 'test'],
        choices=['train', 'val', 'test'],
        help='which data to read (default: all; what val and test share is read once)',
    )
    parser.add_argument(
        '--workers',
        type=positive_integer,
        default=min(4, os.cpu_count() or 1),
        metavar='N',
        help='threads that decode pictures (default: %(default)s)',
    )
    parser.add_argument(
        '--subset',
        action='store_true',
        help='the config means to use only some classes: objects of others are a warning, not an '
        'error',
    )
    parser.add_argument(
        '--examples',
        type=int,
        default=3,
        metavar='N',
        help='how many findings of a kind are written out, 0 for all (default: %(default)s)',
    )
    parser.add_argument(
        '--out', type=Path, metavar='FILE.json', help='write all findings to a file as well'
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help='replace entries of the config, such as val_dataloader.dataset.data_root=FOLDER',
    )
    arguments = parser.parse_args(argv)
    if arguments.examples < 0:
        parser.error(f'--examples must be 0 or more, got {arguments.examples}')
    if arguments.out is not None:
        _check_out(parser, arguments.out)
    from ..cost.config import load_config
    from ..data_check import check_config, report_text

    config = or_error(parser, load_config, arguments.config, arguments.cfg_options)
    report = or_error(
        parser,
        check_config,
        config,
        list(dict.fromkeys(arguments.splits)),
        arguments.workers,
        arguments.subset,
        _progress,
    )
    print(report_text(report, arguments.examples))
    if arguments.out is not None:
        from ..visualization.report import write_text

        content = dict(config=arguments.config, **report.as_dict())
        try:
            write_text(arguments.out, json.dumps(content, indent=1) + '\n')
        except OSError as error:
            print(f'{parser.prog}: error: {error}', file=sys.stderr)
            return 1
    return report.exit_code


def _check_out(parser: Parser, out: Path) -> None:
    """End with one line if the report would replace something else: a config, annotations."""
    if out.is_dir():
        parser.error(f'{out} is a folder; name the file to write')
    if not out.exists():
        return
    try:
        before = json.loads(out.read_bytes())
    except (OSError, ValueError):
        before = None
    if not isinstance(before, dict) or not {'config', 'datasets', 'errors'} <= set(before):
        parser.error(f'{out} exists and is no report of this command; name another file')


def _progress(items: Iterable, unit: str, total: int) -> Iterable:
    from tqdm import tqdm

    return tqdm(items, unit=unit, total=total, disable=None, leave=False)


if __name__ == '__main__':
    sys.exit(main())
