"""What sits where in a model: inserted layers and replaced convolutions.

Point, layer, feature shape, parameters and multiply-accumulates of each, and their share of the
model; then whether each is on, trained, and how its norms run. No data set and no trained weights
are needed.
"""

import json
import sys
from dataclasses import asdict

from ..cost.command_line import Parser, add_model_arguments, model_of, or_error
from ..cost.config import quiet
from ..cost.report import cost_report
from ..cost.text import heading, summary_text
from ..listing.status import state_table
from ..plugging import attention_status

EXAMPLE = 'kronattn summary CONFIG.py --shape 896 1280'


def main(argv: list[str] | None = None) -> int:
    parser = Parser(__doc__, EXAMPLE)
    add_model_arguments(parser)
    arguments = parser.parse_args(argv)
    model, _, shape, source = model_of(parser, arguments)
    with quiet():
        report = or_error(parser, cost_report, model, shape)
        status = attention_status(model, shape)
    kind = type(model).__name__
    if arguments.json:
        content = report.as_dict()
        print(
            json.dumps(
                dict(
                    config=arguments.config,
                    model_type=kind,
                    image_shape_source=source,
                    status=[asdict(row) for row in status],
                    **content,
                ),
                indent=2,
            )
        )
    else:
        print(heading(arguments.config, kind, report, source), summary_text(report), sep='\n')
        if status:
            print('\n' + state_table(status))
    return 0


if __name__ == '__main__':
    sys.exit(main())
