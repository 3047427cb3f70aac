"""``kronattn convert KIND ...``: the converters under one name."""

import difflib
import importlib
import sys
from collections.abc import Sequence

_COMMANDS = 'kronattn_mm.converters.commands.'
# A new converter is one line here: its name, the module whose `main` does it, and what it does.
KINDS = {
    'attention': ('reference_attention', "the authors' efficient attention <-> ours"),
    'non-local': ('non_local', 'non-local blocks of mmcv and mmseg <-> efficient attention'),
    'backbone': ('backbone', 'names of torchvision, mmpretrain, mmseg and mmdet'),
    'nesting': ('nesting', 'list necks, wrappers, parts: the same weights under other prefixes'),
    'publish': ('publish', 'weights alone, with a hash in the name'),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the converter that the first argument names; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        print(usage())
        return 2
    if arguments[0] in ('-h', '--help'):
        print(usage())
        sys.exit(0)  # as argparse does
    kind = arguments.pop(0)
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f'did you mean {near[0]!r}? ' if near else ''
        print(
            f'kronattn convert: error: there is no converter {kind!r}; {hint}There are '
            f'{", ".join(KINDS)}',
            file=sys.stderr,
        )
        return 2
    before = sys.argv
    sys.argv = [f'kronattn convert {kind}', *arguments]  # the name that --help and errors show
    try:
        return importlib.import_module(_COMMANDS + KINDS[kind][0]).main(arguments)
    finally:
        sys.argv = before


def usage() -> str:
    """Say what converters there are."""
    width = max(map(len, KINDS))
    return '\n'.join(
        [
            'usage: kronattn convert KIND CHECKPOINT OUTPUT ...',
            '',
            'Bring weights to other names or another layer. Every key is accounted for; where '
            'something is',
            'missing or does not fit, nothing is written.',
            '',
            'kinds (each has --help with an example):',
            *(f'  {name:{width}}  {text}' for name, (_, text) in KINDS.items()),
            '',
            'example:',
            '  kronattn convert backbone resnet50.pth out.pth --to mmdet',
        ]
    )


if __name__ == '__main__':
    sys.exit(main())
