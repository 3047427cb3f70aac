#!/usr/bin/env python
"""Time a network in the forms that it can be deployed in, side by side, for docs/deployment.md.

The forms take turns, and the median of the turns is taken. Weights are made: times do not depend
on them. Beside each time stands how long the form took to make, and how far it is from eager.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from kronattn_mm.benchmark.measure import time_interleaved
from kronattn_mm.benchmark.text import machine
from kronattn_mm.cost.command_line import Parser, or_error, pixels, positive_integer
from kronattn_mm.cost.config import default_image_shape, load_model, quiet
from kronattn_mm.cost.text import plain_table
from kronattn_mm.deployment import deployed, write_onnx
from kronattn_mm.deployment.layer_cases import make_active
from kronattn_mm.deployment.onnx_file import DIMENSIONS, INPUT, open_session
from kronattn_mm.plugging import fused

EXAMPLE = """python tools/docs/deployment_speed.py CONFIG.py --shape 224 224
  python tools/docs/deployment_speed.py CONFIG.py --batch 8 --threads 2"""
Form = Callable[[], tuple[Tensor, ...]]


def parse_arguments(argv: list[str] | None = None) -> tuple[Parser, argparse.Namespace]:
    parser = Parser(__doc__, EXAMPLE)
    parser.add_argument(
        'config', metavar='CONFIG', help='config file of an mmdet, mmseg or mmpretrain model'
    )
    parser.add_argument(
        '--shape',
        nargs=2,
        type=pixels,
        metavar=('H', 'W'),
        help="height and width of the image (default: the config's)",
    )
    parser.add_argument(
        '--batch',
        type=positive_integer,
        default=1,
        metavar='N',
        help='images in a batch (default: %(default)s)',
    )
    parser.add_argument(
        '--repetitions',
        type=positive_integer,
        default=15,
        metavar='N',
        help='turns of each form (default: %(default)s)',
    )
    parser.add_argument(
        '--threads',
        type=positive_integer,
        metavar='N',
        help="threads of torch and onnxruntime (default: torch's choice)",
    )
    return parser, parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    parser, arguments = parse_arguments(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    model, config = or_error(parser, load_model, arguments.config)
    shape = tuple(arguments.shape or default_image_shape(config)[0])
    with quiet():
        make_active(model)
    image = torch.randn(arguments.batch, 3, *shape, generator=torch.Generator().manual_seed(0))
    module = or_error(parser, deployed, model, image)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        forms, made = make_forms(module, image, Path(folder))
        wanted = module(image)
        far = {name: largest(wanted, form()) for name, form in forms.items()}
        times = time_interleaved(forms, arguments.repetitions)
    rows = [
        [
            name,
            f'{1000 * taken.wall:.1f}',
            f'{times["eager"].wall / taken.wall:.2f}',
            f'{made[name]:.0f}',
            f'{far[name]:.1e}',
        ]
        for name, taken in times.items()
    ]
    facts = machine('cpu')
    print(
        f'{Path(arguments.config).name}, {module.part}, {arguments.batch}x3x{shape[0]}x{shape[1]}; '
        f'{facts["threads"]} thread(s) of {facts["cores"]} cores, torch {facts["torch"]}; medians '
        f'of {arguments.repetitions} turns'
    )
    print(plain_table(['form', 'ms', 'times eager', 's to make', 'difference'], rows, left=1))
    return 0


def make_forms(
    module: torch.nn.Module, image: Tensor, folder: Path
) -> tuple[dict[str, Form], dict[str, float]]:
    """Bring a module into each form; return what runs it, and the seconds that making took."""
    forms: dict[str, Form] = {}
    made: dict[str, float] = {}

    def add(name: str, make: Callable[[], Form]) -> None:
        print(f'{name} ...', file=sys.stderr)
        start = time.perf_counter()
        with quiet():
            forms[name] = make()
            forms[name]()  # compilers work at the first call
        made[name] = time.perf_counter() - start

    folded = fused(module, image)
    add('eager', lambda: lambda: module(image))
    add('fused', lambda: lambda: folded(image))
    add('torch.compile', lambda: _bound(torch.compile(module), image))
    add('fused, torch.compile', lambda: _bound(torch.compile(folded), image))
    add(
        'fused, torch.export', lambda: _bound(torch.export.export(folded, (image,)).module(), image)
    )
    add('fused, ONNX Runtime', lambda: _onnx(folded, image, folder / 'model.onnx'))
    return forms, made


def largest(wanted: tuple[Tensor, ...], actual: tuple[Tensor, ...]) -> float:
    """Largest difference of any output, in units of the largest value of that output."""
    return max(
        float((a - b).abs().max() / a.abs().max()) for a, b in zip(wanted, actual, strict=True)
    )


def _bound(function: Callable[[Tensor], tuple[Tensor, ...]], image: Tensor) -> Form:
    return lambda: function(image)


def _onnx(module: torch.nn.Module, image: Tensor, path: Path) -> Form:
    write_onnx(module, image, path, fixed=tuple(DIMENSIONS))
    session = open_session(path)
    given = {INPUT: image.numpy()}
    return lambda: tuple(map(torch.from_numpy, session.run(None, given)))


if __name__ == '__main__':
    sys.exit(main())
