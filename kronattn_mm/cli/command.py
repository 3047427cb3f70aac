"""The command ``kronattn``: one name for all the tools, each of which says more with --help."""

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence

from ..version import __version__

# A new command is one line here: its name, the module whose `main` does it, and what it does. What
# is not there is not listed.
COMMANDS = {
    'doctor': ('kronattn_mm.cli.doctor', 'what this environment lacks, and how to mend it'),
    'points': ('kronattn_mm.cli.points', 'where attention can go in the model of a config'),
    'layers': ('kronattn_mm.cli.layers', 'every layer that can be inserted, with its arguments'),
    'summary': ('kronattn_mm.cli.summary', 'what is inserted into the model of a config'),
    'cost': ('kronattn_mm.cli.cost', 'what the attention in a model costs, before training'),
    'check-data': ('kronattn_mm.cli.check_data', 'what is broken in the data of a config'),
    'show': ('kronattn_mm.cli.show', 'attention maps over images'),
    'report': ('kronattn_mm.cli.report', 'one HTML page that tells a run'),
    'extract': ('kronattn_mm.cli.extract', 'the inserted layers of a checkpoint as a small file'),
    'attach': ('kronattn_mm.cli.attach', 'such a file onto a plain checkpoint'),
    'inspect': ('kronattn_mm.cli.inspect_file', 'what a small file or a checkpoint holds'),
    'strip': ('kronattn_mm.cli.strip', 'a checkpoint without its inserted layers'),
    'convert': ('kronattn_mm.cli.convert', 'checkpoints to other names or another attention'),
    'export': ('kronattn_mm.cli.export', 'a trained model as an ONNX file that is proved equal'),
    'support': ('kronattn_mm.cli.support', 'which layer works in which form, and how exactly'),
    'ablate': ('kronattn_mm.cli.ablate', 'what each inserted layer contributes'),
    'bench': ('kronattn_mm.cli.bench', 'time and memory of operators or networks, side by side'),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    known = {name: target for name, (target, _) in COMMANDS.items() if _exists(target)}
    if not arguments or arguments[0] in ('-h', '--help', 'help'):
        print(usage(known))
        return 0 if arguments else 2
    if arguments[0] == '--version':
        print(f'kronattn_mm {__version__}')
        return 0
    name = arguments.pop(0)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f'did you mean {near[0]!r}? ' if near else ''
        print(
            f'kronattn: error: there is no command {name!r}; {hint}The commands are '
            f'{", ".join(known)}',
            file=sys.stderr,
        )
        return 2
    before = sys.argv
    sys.argv = [f'kronattn {name}', *arguments]  # the name that --help and errors show
    try:
        unusable = None if name == 'doctor' else _unusable_backend()
        if unusable is not None:
            print(f'kronattn {name}: error: {unusable}', file=sys.stderr)
            return 2
        return importlib.import_module(known[name]).main(arguments) or 0
    except ModuleNotFoundError as error:
        package = (error.name or '').partition('.')[0]
        if package == 'kronattn_mm':
            raise
        print(
            f'kronattn {name}: error: {package} is not installed; install what is missing with '
            "`pip install 'kronattn-mm[forks,tools]'`; `kronattn doctor` says what is there",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        sys.argv = before


def _unusable_backend() -> str | None:
    """What is wrong with the backend that the environment names, if it names one."""
    if 'KRONATTN_BACKEND' not in os.environ:
        return None
    from ..ops.backend import backend  # torch takes seconds: only where the variable is set

    try:
        backend()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return None


def usage(known: Sequence[str]) -> str:
    """Say what commands there are."""
    width = max(map(len, known))
    return '\n'.join(
        [
            'usage: kronattn COMMAND ...',
            '',
            'commands (each has --help with an example):',
            *(f'  {name:{width}}  {COMMANDS[name][1]}' for name in known),
            '',
            'example:',
            '  kronattn points mmdet::retinanet/retinanet_r50_fpn_1x_coco.py',
        ]
    )


def _exists(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


if __name__ == '__main__':
    sys.exit(main())
