"""What sits where in a model: inserted layers and replaced convolutions.

Point, layer, feature shape, parameters and multiply-accumulates of each, and their share of the
model. No data set and no trained weights are needed.
"""
import json
import sys

from kronattn_mm.cost.command_line import Parser, add_model_arguments, report_of
from kronattn_mm.cost.text import heading, summary_text

EXAMPLE = 'python tools/analysis_tools/plugin_summary.py CONFIG.py --shape 896 1280'


def main(argv: list[str] | None = None) -> int:
    parser = Parser(__doc__, EXAMPLE)
    add_model_arguments(parser)
    arguments = parser.parse_args(argv)
    report, kind, source = report_of(parser, arguments)
    if arguments.json:
        content = report.as_dict()
        print(json.dumps(dict(config=arguments.config, model_type=kind,
                              image_shape_source=source, **content), indent=2))
    else:
        print(heading(arguments.config, kind, report, source), summary_text(report), sep='\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
