"""The command ``kronattn``: one name for all the tools, each of which says more with --help."""

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ..version import __version__

_PACKAGE = Path(__file__).resolve().parents[1]

# A new command is one line here: its name, the module whose `main` does it (or the script in
# tools/), and what it does. Those that are not installed are not listed.
COMMANDS = {
    'doctor': ('kronattn_mm.cli.doctor', 'what this environment lacks, and how to mend it'),
    'points': ('kronattn_mm.cli.points', 'where attention can go in the model of a config'),
    'layers': ('kronattn_mm.cli.layers', 'every layer that can be inserted, with its arguments'),
    'summary': ('kronattn_mm.cli.summary', 'what is inserted into the model of a config'),
    'cost': ('kronattn_mm.cli.cost', 'what the attention in a model costs, before training'),
    'show': ('kronattn_mm.cli.show', 'attention maps over images'),
    'report': ('kronattn_mm.cli.report', 'one HTML page that tells a run'),
    'extract': ('tools/model_converters/extract_attention.py',
                'the inserted layers of a checkpoint as a small file'),
    'attach': ('tools/model_converters/attach_attention.py',
               'such a file onto a plain checkpoint'),
    'inspect': ('tools/model_converters/inspect_attention.py', 'what a file or checkpoint holds'),
    'strip': ('tools/model_converters/strip_attention.py',
              'a checkpoint without its inserted layers'),
    'ablate': ('tools/analysis_tools/ablate.py', 'what each inserted layer contributes'),
    'bench': ('tools/analysis_tools/benchmark.py', 'time and memory, side by side'),
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
        print(f'kronattn: error: there is no command {name!r}; {hint}The commands are '
              f'{", ".join(known)}', file=sys.stderr)
        return 2
    before = sys.argv
    sys.argv = [f'kronattn {name}', *arguments]  # the name that --help and errors show
    try:
        return _main_of(known[name])(arguments) or 0
    except ModuleNotFoundError as error:
        package = (error.name or '').partition('.')[0]
        if package == 'kronattn_mm':
            raise
        print(f'kronattn {name}: error: {package} is not installed; install what is missing with '
              "`pip install 'kronattn-mm[forks,tools]'`; `kronattn doctor` says what is there",
              file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        sys.argv = before


def usage(known: Sequence[str]) -> str:
    """Say what commands there are."""
    width = max(map(len, known))
    return '\n'.join([
        'usage: kronattn COMMAND ...', '', 'commands (each has --help with an example):',
        *(f'  {name:{width}}  {COMMANDS[name][1]}' for name in known), '',
        'example:', '  kronattn points mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'])


def _script(target: str) -> Path | None:
    """Where a script of tools/ is: beside the package in a checkout, inside it when installed."""
    places = (_PACKAGE / '.mim' / target, _PACKAGE.parent / target)
    return next((place for place in places if place.is_file()), None)


def _exists(target: str) -> bool:
    if target.endswith('.py'):
        return _script(target) is not None
    return importlib.util.find_spec(target) is not None


def _main_of(target: str) -> Callable[[list[str]], int | None]:
    if not target.endswith('.py'):
        return importlib.import_module(target).main
    path = _script(target)
    spec = importlib.util.spec_from_file_location(f'kronattn_tool_{path.stem}', path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.main


if __name__ == '__main__':
    sys.exit(main())
