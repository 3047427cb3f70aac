"""Blocks of the reference efficient attention (keys, queries, values, reprojection) to our points.

The weights stay as they are, bit for bit; only the places change, so the same command with OLD and
NEW exchanged goes back. With --config, a block whose channels fit exactly one layer of the model
goes there by itself.
"""

import argparse
import sys

from ...cost.command_line import Parser
from ..command_line import add_file_arguments, add_target_arguments, pairs, run
from ..reference_attention import convert

EXAMPLE = """kronattn convert attention theirs.pth ours.pth \\
      --place backbone.ea3=backbone.attention.res3 --head-count 8
  kronattn convert attention theirs.pth ours.pth --config my_ea_config.py --dry-run"""


def main(argv: list[str] | None = None) -> int:
    parser = Parser(__doc__, EXAMPLE)
    add_file_arguments(parser)
    add_target_arguments(parser)
    parser.add_argument(
        '--place',
        nargs='+',
        default=[],
        metavar='OLD=NEW',
        help='where the block at the module path OLD goes; OLD is empty for a '
        'file that is one block',
    )
    parser.add_argument(
        '--head-count',
        type=_positive,
        metavar='N',
        help='heads of the blocks, which weights do not tell; compared with num_heads of CONFIG',
    )
    arguments = parser.parse_args(argv)
    places = pairs(parser, '--place', arguments.place)
    return run(
        parser,
        arguments,
        lambda source, model: convert(source.state, places, model, arguments.head_count),
    )


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'must be a positive integer, got {text!r}')
    return int(text)


if __name__ == '__main__':
    sys.exit(main())
