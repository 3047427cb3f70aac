"""What the attention in a model costs, before it is trained.

For each inserted layer and in total: parameters, multiply-accumulates and memory in the accounting
of the layer's paper, and beside them what this implementation executes. No data set and no trained
weights are needed. docs/cost.md explains the columns.

Without CONFIG: the figures that the efficient-attention paper prints, beside ours.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from ..cost.command_line import Parser, add_model_arguments, report_of
from ..cost.paper_tables import examples, table_2
from ..cost.text import cost_text, heading, paper_examples_text, paper_table_2_text

EXAMPLE = """kronattn cost CONFIG.py --shape 896 1280
  kronattn cost --paper-table 2"""


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(__doc__, EXAMPLE)
    add_model_arguments(parser, config_needed=False)
    parser.add_argument(
        '--chart',
        type=_png,
        metavar='FILE.png',
        help='also draw the inserted layers of CONFIG as bars',
    )
    parser.add_argument(
        '--paper-table',
        choices=['2'],
        metavar='2',
        help="print the cost columns of the efficient-attention paper's Table 2; "
        'exit code 1 if a cell differs',
    )
    parser.add_argument(
        '--paper-examples',
        action='store_true',
        help="print the examples in that paper's text; exit code 1 if one differs",
    )
    parser.add_argument(
        '--figure', type=_png, metavar='FILE.png', help="draw a chart like that paper's Figure 2"
    )
    arguments = parser.parse_args(argv)
    paper = arguments.paper_table or arguments.paper_examples or arguments.figure
    if arguments.config is None and not paper:
        parser.error('give a CONFIG, or --paper-table 2, --paper-examples or --figure FILE.png')
    if arguments.config is None and (arguments.shape or arguments.chart or arguments.cfg_options):
        parser.error('--shape, --chart and --cfg-options need a CONFIG')
    return parser, arguments


def main(argv: list[str] | None = None) -> int:
    parser, arguments = parse_arguments(argv)
    texts, contents, agrees = [], {}, True
    if arguments.paper_table:
        rows = table_2()
        agrees = agrees and all(cell.matches for row in rows for cell in row)
        texts.append(paper_table_2_text(rows))
        contents['paper_table_2'] = [asdict(cell) for row in rows for cell in row]
    if arguments.paper_examples:
        checks = examples()
        agrees = agrees and all(check.matches for check in checks)
        texts.append(paper_examples_text(checks))
        contents['paper_examples'] = [asdict(check) for check in checks]
    if arguments.config is not None:
        report, kind, source = report_of(parser, arguments)
        texts.append(heading(arguments.config, kind, report, source) + '\n' + cost_text(report))
        contents |= dict(
            config=arguments.config, model_type=kind, image_shape_source=source, **report.as_dict()
        )
    if texts:
        print(json.dumps(contents, indent=2) if arguments.json else '\n\n'.join(texts))
    try:
        if arguments.figure or arguments.chart:
            from ..visualization.cost_chart import draw_figure_2, draw_layers
        if arguments.figure:
            draw_figure_2(arguments.figure)
            print(f'wrote {arguments.figure}', file=sys.stderr)
        if arguments.chart:
            draw_layers(arguments.chart, report)
            print(f'wrote {arguments.chart}', file=sys.stderr)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return 0 if agrees else 1


def _png(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() != '.png':
        raise ValueError
    return path


_png.__name__ = 'PNG file name'  # argparse: "invalid PNG file name value: 'x.jpg'"

if __name__ == '__main__':
    sys.exit(main())
