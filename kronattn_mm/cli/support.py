"""Test every layer in every form that it can be deployed in, and say how far each is off.

Forms: eager, torch.compile, torch.export, ONNX with fixed and with open sizes, fused with its batch
norm, bfloat16, float16. Each is compared with the layer's straightforward form in float64. Exit
code 1 if a form cannot be had or is above its tolerance. All layers take several minutes, most of
them for torch.compile.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

# The profiler's notices on a machine without GPU.
os.environ.setdefault('KINETO_LOG_LEVEL', '99')

from ..cost.command_line import Parser, or_error
from ..cost.text import plain_table
from ..deployment.layer_cases import layer_cases
from ..deployment.support import STATES, TITLES, TOLERANCES, Row, failures, support_row
from ..deployment.support_page import (
    WRITTEN_BY,
    Page,
    cells_of,
    differences,
    merged,
    name_of,
    page_text,
    read_page,
    setting,
)
from ..visualization.report import write_text

EXAMPLE = """kronattn support
  kronattn support EfficientAttention2d --states eager onnx-dynamic fp16
  kronattn support --page docs/support.md"""


def parse_arguments(argv: Sequence[str] | None = None) -> tuple[Parser, argparse.Namespace]:
    parser = Parser(__doc__, EXAMPLE)
    parser.add_argument(
        'layers', nargs='*', metavar='LAYER', help='only these layers (default: all)'
    )
    parser.add_argument(
        '--states',
        nargs='+',
        choices=STATES,
        default=list(STATES),
        metavar='FORM',
        help=f'only these forms: {", ".join(STATES)}',
    )
    parser.add_argument(
        '--page',
        type=Path,
        metavar='FILE.md',
        help='write the table there; with LAYERs, exchange their rows in the page that is there',
    )
    parser.add_argument(
        '--check',
        type=Path,
        metavar='FILE.md',
        help='compare with a page: exit code 1 if it lacks a layer or says otherwise of a form',
    )
    parser.add_argument(
        '--compiler',
        default='inductor',
        metavar='BACKEND',
        help='backend of torch.compile (default: %(default)s)',
    )
    parser.add_argument('--json', action='store_true', help='print JSON instead of a table')
    arguments = parser.parse_args(argv)
    if (arguments.page or arguments.check) and len(arguments.states) < len(STATES):
        parser.error('--page and --check need all forms, leave --states out')
    return parser, arguments


def main(argv: Sequence[str] | None = None) -> int:
    from tqdm import tqdm

    parser, arguments = parse_arguments(argv)
    cases = or_error(parser, layer_cases, arguments.layers)
    states = list(dict.fromkeys(arguments.states))
    before = None
    if arguments.check:
        checked = _read(parser, arguments.check)
    if arguments.page and arguments.page.exists():
        _check_ours(parser, arguments.page)
        before = _read(parser, arguments.page) if arguments.layers else None
    measured_with = setting(arguments.compiler)
    if before is not None and before.setting != measured_with:
        parser.error(
            f'{arguments.page} was measured in another setting, so all its rows have to be '
            'measured again; leave the names of layers out'
        )
    rows = []
    with tqdm(total=len(cases) * len(states), unit='form', disable=None) as bar:
        for case in cases:
            bar.set_description(case.name)
            rows.append(support_row(case, states, arguments.compiler, bar.update))
    problems = failures(rows)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        print(_text(rows, states))
    page = Page(measured_with, {name_of(row): cells_of(row) for row in rows})
    if arguments.check:
        problems += [f'{arguments.check}: {line}' for line in differences(checked, page)]
    if arguments.page:
        if before is not None:
            page = merged(before, page, [case.name for case in layer_cases()])
        write_text(arguments.page, page_text(page))
        print(f'wrote {arguments.page}', file=sys.stderr)
    for line in problems:
        print(f'{parser.prog}: {line}', file=sys.stderr)
    return 1 if problems else 0


def _check_ours(parser: Parser, path: Path) -> None:
    """End with one line if this command did not write the file that it is to replace."""
    try:
        if WRITTEN_BY not in path.read_text(encoding='utf-8'):
            parser.error(f'{path} is no page of the support table, and would be lost')
    except (OSError, ValueError) as error:
        parser.error(f'{path} cannot be replaced: {error}')


def _read(parser: Parser, path: Path) -> Page:
    try:
        return read_page(path)
    except (OSError, ValueError) as error:
        parser.error(str(error))


def _text(rows: Sequence[Row], states: Sequence[str]) -> str:
    body = []
    for row in rows:
        cells = ['fails' if cell.problem else f'{cell.difference:.1e}' for cell in row.cells]
        body.append([row.name + ('' if row.oracle else ' (itself)'), *cells])
    body.append(['tolerance', *(f'{TOLERANCES[state]:.1e}' for state in states)])
    return plain_table(['layer', *(TITLES[state] for state in states)], body, left=1, total=True)


if __name__ == '__main__':
    sys.exit(main())
