"""Operators of a paper's table, or whole networks, side by side: memory and time, in one run.

Operators or networks take turns, and the median of the turns is taken. The paper's figures stand
beside ours; docs/kronecker_attention.md explains the columns. With --model the features of each
config's network are extracted, after those of the first without its insertions.
"""

import argparse
import json
import os
import sys
from pathlib import Path

# The profiler, which records the memory, writes on stderr that it finds no GPU.
os.environ.setdefault('KINETO_LOG_LEVEL', '99')

import torch

from ..benchmark import PAPER_TABLES, compare, keep_freed_memory
from ..benchmark.text import comparison_dict, comparison_text, machine, machine_text
from ..cost.command_line import Parser, positive_integer
from ..cost.config import ConfigError, default_image_shape, load_model

EXAMPLE = """kronattn bench --paper-table kao
  kronattn bench --paper-table kao --threads 1 --json kao.json
  kronattn bench --model my_config.py --batch 8 --shape 224 224"""


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(__doc__, EXAMPLE)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        '--paper-table',
        choices=list(PAPER_TABLES),
        help='kao: Table 2 of Kronecker Attention Networks',
    )
    what.add_argument(
        '--model',
        nargs='+',
        metavar='CONFIG',
        help='networks of these configs, against the first without its insertions',
    )
    parser.add_argument(
        '--shape',
        nargs=2,
        type=positive_integer,
        metavar=('HEIGHT', 'WIDTH'),
        help="with --model: pixels of the input (default: the config's)",
    )
    parser.add_argument(
        '--batch',
        type=positive_integer,
        metavar='N',
        help='with --model: images in a batch (default: 1)',
    )
    parser.add_argument(
        '--training',
        action='store_true',
        help='with --model: forward and backward in training mode',
    )
    parser.add_argument(
        '--repetitions',
        type=positive_integer,
        default=15,
        metavar='N',
        help='turns of each operator (default: 15)',
    )
    parser.add_argument(
        '--sizes',
        nargs='+',
        type=positive_integer,
        metavar='SIDE',
        help="sides of square maps (default: the table's)",
    )
    parser.add_argument(
        '--threads',
        type=positive_integer,
        metavar='N',
        help="threads on the CPU (default: torch's choice)",
    )
    parser.add_argument('--device', default='cpu', help='cpu or cuda (default: cpu)')
    parser.add_argument(
        '--keep-memory',
        action='store_true',
        help='let the process keep freed CPU memory, as GPU allocators do, so that '
        'operators with large intermediate results are not charged for getting it '
        'anew (glibc only)',
    )
    parser.add_argument('--json', type=Path, metavar='FILE', help='also write the figures as JSON')
    parser.add_argument('--png', type=_png, metavar='FILE.png', help='also draw a chart')
    return parser, parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    parser, arguments = parse_arguments(argv)
    for name in ('shape', 'batch', 'training'):
        if arguments.paper_table and getattr(arguments, name):
            parser.error(f'--{name} goes with --model')
    for name in ('sizes', 'png'):
        if arguments.model and getattr(arguments, name):
            parser.error(f'--{name} goes with --paper-table')
    for path in (arguments.json, arguments.png):
        if path is not None and not path.absolute().parent.is_dir():
            parser.error(f'the folder of {path} does not exist')
    try:
        torch.zeros(1, device=arguments.device)
    except (RuntimeError, AssertionError) as error:
        parser.error(f'device {arguments.device!r} cannot be used: {str(error).splitlines()[0]}')
    threads = torch.get_num_threads()
    try:
        if arguments.keep_memory:
            keep_freed_memory()
        torch.set_num_threads(arguments.threads or threads)
        return run_models(arguments) if arguments.model else run(arguments)
    except (ConfigError, ImportError, OSError) as error:
        parser.error(str(error))
    except torch.OutOfMemoryError as error:
        parser.error(f'not enough memory; take a smaller input ({str(error).splitlines()[0]})')
    finally:
        torch.set_num_threads(threads)


def run(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    comparison = PAPER_TABLES[arguments.paper_table]
    sizes = comparison.sizes
    if arguments.sizes:
        sizes = tuple((side, side) for side in arguments.sizes)
    settings = dict(
        machine(arguments.device),
        repetitions=arguments.repetitions,
        keep_memory=arguments.keep_memory,
    )
    turns = len(sizes) * len(comparison.operators) * arguments.repetitions
    with tqdm(total=turns, unit='turn', disable=None) as bar:
        rows = compare(comparison, arguments.repetitions, arguments.device, sizes, bar.update)
    print(comparison_text(comparison, rows, settings))
    if arguments.json:
        write_json(arguments.json, comparison_dict(comparison, rows, settings))
    if arguments.png:
        from ..visualization.benchmark_chart import draw_comparison

        draw_comparison(arguments.png, comparison, rows, machine_text(settings))
        print(f'wrote {arguments.png}', file=sys.stderr)
    return 0


def run_models(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from ..benchmark.models import compare_models, models_dict, models_text, with_and_without

    models, shape = {}, arguments.shape
    for path in arguments.model:
        model, config = load_model(path)
        if not hasattr(model, 'extract_feat'):
            raise ConfigError(f'the model of {path} has no extract_feat')
        name = Path(path).stem
        models[name if name not in models else str(path)] = model
        shape = shape or default_image_shape(config)[0]
    models = with_and_without(models)
    settings = dict(
        machine(arguments.device),
        repetitions=arguments.repetitions,
        keep_memory=arguments.keep_memory,
        shape=tuple(shape),
        batch=arguments.batch or 1,
        training=arguments.training,
    )
    with tqdm(total=len(models) * arguments.repetitions, unit='turn', disable=None) as bar:
        rows = compare_models(
            models,
            tuple(shape),
            settings['batch'],
            arguments.repetitions,
            arguments.device,
            arguments.training,
            bar.update,
        )
    print(models_text(rows, settings))
    if arguments.json:
        write_json(arguments.json, models_dict(rows, settings))
    return 0


def write_json(path: Path, data: dict) -> None:
    unfinished = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
    try:
        unfinished.write_text(json.dumps(data, indent=2) + '\n', encoding='utf-8')
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    print(f'wrote {path}', file=sys.stderr)


def _png(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() != '.png':
        raise ValueError
    return path


_png.__name__ = 'PNG file name'

if __name__ == '__main__':
    sys.exit(main())
