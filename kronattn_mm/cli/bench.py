"""Layers, operators or whole networks side by side: time, memory and operators, in one run.

Those that are compared take turns, and the median of the turns is taken; losing sizes are shown
like all others. What is compared:

--layer NAME      a layer of kronattn_mm.layers against its straightforward form, mmcv's non-local
                  block, torch's fused attention and what the machine can do at best, over map sizes
--model CONFIG    feature extraction of networks, after that of the first without its insertions
--contests [KEY]  what docs/performance.md promises, each beside its bar; with --page that page is
                  written anew, measured with all ways of the allocator
--paper-table     operators of a paper's table beside the paper's figures, explained in
                  docs/kronecker_attention.md
"""

import argparse
import difflib
import os
import sys
from pathlib import Path

# The profiler, which records the memory, writes on stderr that it finds no GPU.
os.environ.setdefault('KINETO_LOG_LEVEL', '99')

import torch

from ..benchmark import CONTESTS, PAPER_TABLES, keep_freed_memory, return_freed_memory
from ..benchmark.page import MORE, PageError
from ..benchmark.rivals import RIVALS
from ..cost.command_line import ConfigOptions, Parser, positive_integer
from ..cost.config import ConfigError
from . import bench_runs

EXAMPLE = """kronattn bench --layer EfficientAttention2d --maps 14x20 56x80 --threads 2
  kronattn bench --layer KroneckerAttention2d --set mode=qkv --channels 8 --batch 8 --training
  kronattn bench --model my_config.py --batch 8 --shape 224 224
  kronattn bench --contests --threads 2 --page docs/performance.md
  kronattn bench --paper-table kao --threads 1 --json kao.json"""
# What each way of use takes beside the options that all take.
_OPTIONS = {
    'layer': ('set', 'channels', 'maps', 'against', 'batch', 'dtype', 'training', 'png'),
    'model': ('shape', 'batch', 'training'),
    'contests': ('page', 'processes', 'resume'),
    'paper_table': ('sizes', 'png'),
}
_MEMORY = {'usual': lambda: None, 'kept': keep_freed_memory, 'returned': return_freed_memory}
_DTYPES = ('float32', 'bfloat16', 'float16', 'float64')


def parse_arguments(
    argv: list[str] | None = None,
) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = Parser(__doc__, EXAMPLE)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument('--layer', metavar='NAME', help='a layer of this package (kronattn layers)')
    what.add_argument(
        '--model',
        nargs='+',
        metavar='CONFIG',
        help='networks of these configs, against the first without its insertions',
    )
    what.add_argument(
        '--contests', nargs='*', metavar='KEY', help='contests whose name begins so (default: all)'
    )
    what.add_argument(
        '--paper-table',
        choices=list(PAPER_TABLES),
        help='kao: Table 2 of Kronecker Attention Networks',
    )
    layer = parser.add_argument_group('with --layer')
    layer.add_argument(
        '--set',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help="arguments of the layer's constructor, such as key_channels=32",
    )
    layer.add_argument(
        '--channels', type=positive_integer, metavar='N', help='channels of the input (default 256)'
    )
    layer.add_argument(
        '--maps',
        nargs='+',
        type=map_size,
        metavar='HxW',
        help='sizes of the input: HxW, L for one dimension, DxHxW for three '
        '(default: 7x7 14x14 28x28 56x56 and the like)',
    )
    layer.add_argument(
        '--against',
        nargs='+',
        choices=list(RIVALS),
        metavar='RIVAL',
        help='; '.join(f'{name}: {text}' for name, text in RIVALS.items())
        + ' (default: those that say something about the layer)',
    )
    layer.add_argument('--dtype', choices=_DTYPES, help='of input and weights (default: float32)')
    shared = parser.add_argument_group('with --layer and --model')
    shared.add_argument(
        '--batch', type=positive_integer, metavar='N', help='images in a batch (default: 1)'
    )
    shared.add_argument(
        '--training', action='store_true', help='forward and backward in training mode'
    )
    model = parser.add_argument_group('with --model')
    model.add_argument(
        '--shape',
        nargs=2,
        type=positive_integer,
        metavar=('HEIGHT', 'WIDTH'),
        help="pixels of the input (default: the config's)",
    )
    contests = parser.add_argument_group('with --contests')
    contests.add_argument(
        '--page',
        type=Path,
        metavar='FILE.md',
        help='write the measured part of this page, its chart in images/ and its data as JSON',
    )
    contests.add_argument(
        '--processes',
        type=positive_integer,
        metavar='N',
        help='for --page, processes that measure with the usual allocator, of which the median is '
        f'taken; {MORE} times as many that count where ratios lie on both sides of a bar or do not '
        f'all count (default: {bench_runs.PROCESSES})',
    )
    contests.add_argument(
        '--resume',
        action='store_true',
        help='for --page, take up what a run that ended early had measured',
    )
    table = parser.add_argument_group('with --paper-table')
    table.add_argument(
        '--sizes',
        nargs='+',
        type=positive_integer,
        metavar='SIDE',
        help="sides of square maps (default: the table's)",
    )
    every = parser.add_argument_group('with all')
    every.add_argument(
        '--repetitions',
        type=positive_integer,
        default=15,
        metavar='N',
        help='turns of each (default: 15)',
    )
    every.add_argument(
        '--threads',
        type=positive_integer,
        metavar='N',
        help="threads on the CPU (default: torch's choice)",
    )
    every.add_argument('--device', default='cpu', help='cpu or cuda (default: cpu)')
    every.add_argument(
        '--memory',
        choices=list(_MEMORY),
        help='what becomes of freed CPU memory: kept, as GPU allocators do, so that operators with '
        'large intermediate results are not charged for getting it anew; returned to the system at '
        'once; or as the usual allocator decides (default: usual; the other two need glibc)',
    )
    every.add_argument('--json', type=Path, metavar='FILE', help='also write the figures as JSON')
    every.add_argument(
        '--png',
        type=_png,
        metavar='FILE.png',
        help='also draw a chart (with --layer and --paper-table)',
    )
    return parser, parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    parser, arguments = parse_arguments(argv)
    check_options(parser, arguments)
    for path in (arguments.json, arguments.png):
        if path is not None and not path.absolute().parent.is_dir():
            parser.error(f'the folder of {path} does not exist')
        if path is not None and path.is_dir():
            parser.error(f'{path} is a folder; name the file to write')
    try:
        torch.zeros(1, device=arguments.device)
    except (RuntimeError, AssertionError) as error:
        parser.error(f'device {arguments.device!r} cannot be used: {str(error).splitlines()[0]}')
    threads = torch.get_num_threads()
    try:
        _MEMORY[arguments.memory or 'usual']()
        torch.set_num_threads(arguments.threads or threads)
        if arguments.layer:
            return bench_runs.layer(arguments)
        if arguments.model:
            return bench_runs.models(arguments)
        if arguments.page:
            return bench_runs.page(arguments)
        if arguments.contests is not None:
            return bench_runs.contests(arguments)
        return bench_runs.paper_table(arguments)
    except (ConfigError, ImportError, OSError, PageError) as error:
        parser.error(str(error))
    except RuntimeError as error:
        # On the CPU it is no OutOfMemoryError, and a size beyond 64 bits is no allocation at all.
        words = ('allocate memory', 'not enough memory', 'size calculation overflowed')
        if not isinstance(error, torch.OutOfMemoryError) and not any(
            word in str(error) for word in words
        ):
            raise
        parser.error(f'not enough memory; take a smaller input ({str(error).splitlines()[0]})')
    finally:
        torch.set_num_threads(threads)


def check_options(parser: Parser, arguments: argparse.Namespace) -> None:
    """End with one line where an option does not go with what is measured."""
    mode = next(name for name in _OPTIONS if getattr(arguments, name) is not None)
    for name in dict.fromkeys(option for options in _OPTIONS.values() for option in options):
        if getattr(arguments, name) and name not in _OPTIONS[mode]:
            modes = [other for other, options in _OPTIONS.items() if name in options]
            parser.error(
                f'--{name} goes with {" and ".join("--" + other for other in modes)}'.replace(
                    '_', '-'
                )
            )
    if arguments.page:
        if arguments.contests or arguments.memory or arguments.json:
            parser.error('--page takes all contests, all ways of the allocator, and writes JSON')
        if arguments.device != 'cpu':
            parser.error('--page compares ways of the CPU allocator and goes with --device cpu')
    for name in ('processes', 'resume'):
        if getattr(arguments, name) and not arguments.page:
            parser.error(f'--{name} goes with --page')
    for key in arguments.contests or ():
        known = [contest.key for contest in CONTESTS]
        if not any(name.startswith(key) for name in known):
            near = difflib.get_close_matches(key, known, n=1)
            hint = f'; did you mean {near[0]!r}?' if near else f'; there are {", ".join(known)}'
            parser.error(f'no contest begins with {key!r}{hint}')


def map_size(text: str) -> tuple[int, ...]:
    """Read a map's size such as ``56x80``: a ``type`` for argparse."""
    return tuple(map(positive_integer, text.lower().split('x')))


map_size.__name__ = 'map size'


def _png(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() != '.png':
        raise ValueError
    return path


_png.__name__ = 'PNG file name'

if __name__ == '__main__':
    sys.exit(main())
