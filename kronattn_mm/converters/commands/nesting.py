"""The same weights under other prefixes: list necks, wrappers, a part of a model or the whole.

With --config the prefixes are found by comparing keys and shapes; --rename says them where that is
not clear or there is no config. Keys of layers that CONFIG inserts may be missing, nothing else.
"""

import sys

from ...cost.command_line import Parser
from ..command_line import add_file_arguments, add_target_arguments, pairs, run
from ..nesting import convert

EXAMPLE = """kronattn convert nesting plain.pth out.pth --config config_with_list_neck.py
  kronattn convert nesting ddp.pth out.pth --rename module= neck=neck.0
  kronattn convert nesting trained.pth raw.pth --entry ema_state_dict --rename module="""


def main(argv: list[str] | None = None) -> int:
    parser = Parser(__doc__, EXAMPLE)
    add_file_arguments(parser)
    add_target_arguments(parser)
    parser.add_argument(
        '--rename',
        nargs='+',
        default=[],
        metavar='OLD=NEW',
        help='what the prefix OLD becomes; either may be empty',
    )
    parser.add_argument(
        '--drop', nargs='+', default=[], metavar='PREFIX', help='leave out what is below PREFIX'
    )
    arguments = parser.parse_args(argv)
    rules = pairs(parser, '--rename', arguments.rename)
    return run(
        parser,
        arguments,
        lambda source, model: convert(
            source.state, rules, arguments.drop, model, arguments.part or ''
        ),
        unwrap=False,
    )


if __name__ == '__main__':
    sys.exit(main())
