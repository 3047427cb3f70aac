"""Make a checkpoint fit to give away: weights and metadata only, and a hash in the name.

Optimizer, schedules, logs and averages are left out; of the metadata, what a user of the weights
needs is kept. The file is written as OUTPUT-<first 8 digits of its SHA-256>.pth and can be read
with weights_only, without mmengine. The config in the metadata (cfg) may hold paths of your
machine: --drop-meta cfg leaves it out.
"""

import sys

from ...cost.command_line import Parser
from ..checkpoint import ConversionError, read_checkpoint
from ..command_line import add_file_arguments
from ..conversion import rename
from ..publish import published, write_published
from ..report import report_dict, report_text, write_report

EXAMPLE = 'kronattn convert publish epoch_12.pth mask-rcnn_r50_fpn_ea.pth'


def main(argv: list[str] | None = None) -> int:
    parser = Parser(__doc__, EXAMPLE)
    add_file_arguments(parser)
    parser.add_argument(
        '--keep-meta',
        nargs='+',
        default=[],
        metavar='NAME',
        help='entries of the metadata to keep besides the usual ones',
    )
    parser.add_argument(
        '--drop-meta',
        nargs='+',
        default=[],
        metavar='NAME',
        help='entries of the metadata to leave out, such as cfg',
    )
    arguments = parser.parse_args(argv)
    if arguments.output is None and not arguments.dry_run:
        parser.error('name an OUTPUT to write, or give --dry-run')
    try:
        if arguments.output is not None and arguments.output.is_dir():
            raise ConversionError(f'{arguments.output} is a folder; name the file to write')
        source = read_checkpoint(arguments.checkpoint, arguments.trust_pickle, arguments.entry)
        state, meta, left_out = published(source, arguments.keep_meta, arguments.drop_meta)
        conversion = rename(state, str)
        conversion.dropped |= {key: 'not a tensor' for key in source.ignored}
        report = report_dict(source, conversion, None, left_out)
        print(report_text(report, None, arguments.verbose))
        print(f'metadata kept: {", ".join(meta) or "none"}')
        if arguments.report is not None:
            write_report(arguments.report, report)
        if arguments.dry_run:
            print('nothing was written (--dry-run)')
            return 0
        before = arguments.checkpoint.stat().st_size
        named = write_published(arguments.output, state, source.versions, meta, arguments.force)
    except ConversionError as error:
        print(f'{parser.prog}: error: {error}', file=sys.stderr)
        return 1
    print(f'written to {named}: {named.stat().st_size / 1e6:.1f} MB of {before / 1e6:.1f} MB')
    return 0


if __name__ == '__main__':
    sys.exit(main())
