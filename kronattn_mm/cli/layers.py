"""Every layer that can be inserted, with its arguments, their defaults and what it is.

Without NAME: the layers of this package, and mmcv's if it is installed. A NAME may be any
registered one, such as mmdet.DropBlock.
"""

import json
import sys
import textwrap
from dataclasses import asdict

from ..cost.command_line import Parser, or_error
from ..listing import LayerEntry, list_layers
from ..listing.layers import REQUIRED

EXAMPLE = """kronattn layers
  kronattn layers EfficientAttention2d --json"""
_USES = dict(
    insert='for `insert` (in_channels is found out)',
    convs='for `convs` and conv_cfg (the geometry is that of the plain convolution)',
)


def main(argv: list[str] | None = None) -> int:
    parser = Parser(__doc__, EXAMPLE)
    parser.add_argument('names', nargs='*', metavar='NAME', help='only these layers')
    parser.add_argument('--json', action='store_true', help='print JSON instead of text')
    arguments = parser.parse_args(argv)
    entries = or_error(parser, list_layers, arguments.names)
    if arguments.json:
        print(json.dumps([asdict(entry) for entry in entries], indent=2))
    else:
        print(layers_text(entries))
    return 0


def layers_text(entries: list[LayerEntry]) -> str:
    """Lay out layers, those of one use together."""
    lines = []
    use = ''
    for entry in entries:
        if entry.use != use:
            use = entry.use
            lines += ['', f'== {_USES[use]}'] if lines else [f'== {_USES[use]}']
        arguments = ', '.join(
            item.name if item.default == REQUIRED else f'{item.name}={item.default}'
            for item in entry.arguments
        )
        lines += [
            '',
            entry.type,
            *textwrap.wrap(entry.sentence, 96, initial_indent='    ', subsequent_indent='    '),
        ]
        if arguments:
            lines += textwrap.wrap(
                arguments,
                96,
                initial_indent='    ',
                subsequent_indent='      ',
                break_long_words=False,
            )
    return '\n'.join(lines)


if __name__ == '__main__':
    sys.exit(main())
