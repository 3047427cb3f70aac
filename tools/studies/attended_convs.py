#!/usr/bin/env python
"""Train networks with attended convolutions under one recipe and lay the results side by side.

The recipe is that of "Shift-and-Balance Attention" (arXiv 2103.13080), section 5.3, for CIFAR-10,
from configs/shift_and_balance/classification/cifar10, shortened to --epochs. Variants are static,
se-block, se-1 to se-3, sb-1 to sb-3 and dyconv; the number says how many convolutions of a
bottleneck are attended (1: the first pointwise one, 2: both pointwise ones, 3: all). The options
--lambda-init to --place vary the layers, as the paper's ablations do; several values of one make
a network each.

What is left in the folder --out:

    results.md        accuracy: mean and standard deviation over seeds, and the paper's order
    results.json/csv  the same as data, with every run
    accuracy.png, lambda.png, saturation.png
                      the course of training
    runs/             a folder for each training, with mmengine's logs and its last checkpoints
    data/             pictures that were unpacked from an archive

A second call goes on where the first one stopped: finished runs are skipped, a broken one is
resumed, and more variants, widths or seeds are added to the table. docs/shift_and_balance.md
explains what is measured.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parents[1]
CONFIGS = TOOLS.parent / 'configs' / 'shift_and_balance' / 'classification' / 'cifar10'
EXAMPLE = """\
examples:
  python tools/studies/attended_convs.py --data data/cifar10 --out out/study
  python tools/studies/attended_convs.py --data data/cifar10 --out out/lambda --variants sb-3 \\
      --lambda-init 0.01 0.05 0.1 0.5 1
"""


def parse_arguments(
    argv: list[str] | None = None,
) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    from kronattn_mm.cost.command_line import ConfigOptions, positive_integer
    from kronattn_mm.layers.attended_conv import PLACES
    from kronattn_mm.layers.attention_branch import GATES
    from kronattn_mm.studies import VARIANTS

    gates = ['none' if gate is None else gate for gate in GATES]
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--data',
        type=Path,
        required=True,
        metavar='PATH',
        help="CIFAR-10's folder, a folder with train/<class> and test/<class>, or "
        'an .npz archive of pictures (or the folder it lies in)',
    )
    parser.add_argument('--out', type=Path, required=True, metavar='FOLDER')
    parser.add_argument(
        '--widths',
        type=_number,
        nargs='+',
        default=[0.35, 0.5],
        metavar='W',
        help='width multipliers of MobileNetV2 (default: 0.35 0.5)',
    )
    parser.add_argument(
        '--variants',
        nargs='+',
        choices=VARIANTS,
        metavar='NAME',
        default=['static', 'se-1', 'se-2', 'se-3', 'sb-1', 'sb-2', 'sb-3', 'dyconv'],
        help=f'of {", ".join(VARIANTS)} (default: all but se-block)',
    )
    parser.add_argument(
        '--epochs', type=positive_integer, default=200, help='default: 200, as the paper'
    )
    parser.add_argument(
        '--seeds',
        type=_seed,
        nargs='+',
        default=[0, 1, 2, 3, 4],
        metavar='N',
        help='default: 0 1 2 3 4; the paper has five',
    )
    parser.add_argument(
        '--lambda-init',
        type=float,
        nargs='+',
        default=[],
        metavar='X',
        help='initial value of lambda (sb)',
    )
    parser.add_argument(
        '--gate',
        choices=gates,
        nargs='+',
        default=[],
        help='gate function (sb-1 to sb-3, se-1 to se-3)',
    )
    parser.add_argument(
        '--hidden-ratio',
        type=_number,
        nargs='+',
        default=[],
        metavar='X',
        help='hidden units as a multiple of the output channels, a sixth of it in '
        'depthwise convolutions',
    )
    parser.add_argument(
        '--dropout',
        type=float,
        nargs='+',
        default=[],
        metavar='P',
        help="dropout in the branch's hidden layer",
    )
    parser.add_argument(
        '--place',
        choices=PLACES,
        nargs='+',
        default=[],
        help="where trunk and branch meet: before or after the trunk's norm",
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        default={},
        help='other entries of the config, such as optim_wrapper.optimizer.lr=0.05',
    )
    return parser, parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the tool; returns the exit status."""
    parser, arguments = parse_arguments(argv)
    from kronattn_mm.studies import StudyError, expand_arms

    options = dict(
        lambda_init=arguments.lambda_init,
        gate=[None if gate == 'none' else gate for gate in arguments.gate],
        hidden_ratio=arguments.hidden_ratio,
        dropout=arguments.dropout,
        place=arguments.place,
    )
    try:
        arms = expand_arms(arguments.variants, options)
        study(arguments, arms)
    except (StudyError, ImportError, OSError, ValueError, TypeError) as error:
        # A layer's own message says which value it does not take.
        print(f'{parser.prog}: error: {" ".join(str(error).split())}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f'{parser.prog}: interrupted; the same command goes on from here', file=sys.stderr)
        return 130
    return 0


def study(arguments: argparse.Namespace, arms: Sequence[Any]) -> None:
    """Train what is not finished yet and write the results after each run."""
    from tqdm import tqdm

    from kronattn_mm.studies import Recipe, Run, StudyError, prepare_data, train_run

    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    recipe = Recipe(
        CONFIGS,
        prepare_data(arguments.data, out / 'data', _unpack),
        arguments.epochs,
        dict(arguments.cfg_options),
    )
    # Seed by seed, so that a study that is stopped early compares what it has fairly.
    runs = [
        Run(arm, width, seed)
        for seed in dict.fromkeys(arguments.seeds)
        for width in dict.fromkeys(arguments.widths)
        for arm in arms
    ]
    results = []
    with tqdm(
        total=len(runs) * recipe.epochs,
        unit='epoch',
        disable=None,
        bar_format='{l_bar}{bar}| {n:.1f}/{total} epochs [{elapsed}<{remaining}]',
    ) as bar:
        for number, run in enumerate(runs, 1):
            bar.set_description(run.name)
            try:
                results.append(train_run(recipe, run, out / 'runs' / run.name, bar.update))
            except RuntimeError as error:
                raise StudyError(
                    f'{run.name} failed: {error}; the same command tries it again '
                    'and keeps what is finished'
                ) from error
            bar.write(
                f'{number}/{len(runs)} {run.name}: {results[-1]["accuracy"]:.2f} % in '
                f'{results[-1]["seconds"]:.0f} s',
                file=sys.stderr,
            )
            _write_results(out, arguments, results)


def _write_results(out: Path, arguments: argparse.Namespace, results: Sequence[dict]) -> None:
    from kronattn_mm.studies.summary import write_summary

    command = 'python ' + ' '.join(['tools/studies/attended_convs.py', *sys.argv[1:]])
    write_summary(out, results, command)


def _unpack(archive: Path, folder: Path) -> None:
    sys.path.insert(0, str(TOOLS / 'dataset_tools'))
    from unpack_image_archive import ArchiveError, unpack

    from kronattn_mm.studies import StudyError

    print(f'unpacking {archive} ...', file=sys.stderr)
    try:
        unpack(archive, folder)
    except ArchiveError as error:
        raise StudyError(str(error)) from error


def _seed(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**32:
        raise ValueError
    return value


def _number(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError
    return value


# argparse: "invalid positive integer value: '0'"
_seed.__name__ = 'seed'
_number.__name__ = 'positive number'

if __name__ == '__main__':
    sys.exit(main())
