"""One HTML page that tells a run, finished or broken: of a detector, segmenter or classifier.

Curves, the pictures and attention maps that the run drew, lambda and gates where there are any,
what is inserted and what it costs, the environment, and how the config differs from its base. The
page is one file that needs nothing else. Nothing is trained or evaluated.
"""

import sys
from pathlib import Path

from ..cost.command_line import Parser, or_error, pixels

EXAMPLE = """kronattn report work_dirs/my_config
  kronattn report work_dirs/my_config --config my_config.py --out run.html"""


def main(argv: list[str] | None = None) -> int:
    parser = Parser(__doc__, EXAMPLE)
    parser.add_argument(
        'work_dir', metavar='WORK_DIR', type=Path, help='the --work-dir of train.py'
    )
    parser.add_argument(
        '--out', type=Path, metavar='FILE.html', help='the page (default: report.html in WORK_DIR)'
    )
    parser.add_argument(
        '--config',
        metavar='CONFIG',
        help='the config as written, for the differences to its base (default: '
        'an installed config of the same name)',
    )
    parser.add_argument(
        '--shape',
        nargs=2,
        type=pixels,
        metavar=('H', 'W'),
        help='height and width of the image for shapes and cost (default: what '
        "the config's test pipeline resizes to)",
    )
    parser.add_argument(
        '--pictures',
        type=int,
        default=8,
        metavar='N',
        help='most pictures of predictions (default: %(default)s)',
    )
    arguments = parser.parse_args(argv)
    if arguments.pictures < 0:
        parser.error(f'--pictures must be 0 or more, got {arguments.pictures}')
    from ..cost.config import config_file, quiet
    from ..visualization.run_report import write_report

    source = None if arguments.config is None else or_error(parser, config_file, arguments.config)
    out = arguments.out or arguments.work_dir / 'report.html'
    try:
        with quiet():
            run = or_error(
                parser,
                write_report,
                arguments.work_dir,
                out,
                source,
                None if arguments.shape is None else tuple(arguments.shape),
                arguments.pictures,
            )
    except OSError as error:
        print(f'{parser.prog}: error: {error}', file=sys.stderr)
        return 1
    unit = 'epochs' if run.by_epoch else 'iterations'
    print(
        f'{run.done} of {run.length or "?"} {unit}, {len(run.checkpoints)} checkpoints; wrote '
        f'{out} ({out.stat().st_size / 1e6:.1f} MB)'
    )
    return 0


if __name__ == '__main__':
    sys.exit(main())
