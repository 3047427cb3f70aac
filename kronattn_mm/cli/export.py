"""Write a trained model as an ONNX file with sizes left open, and prove that it computes the same.

Classifiers, segmenters and single-stage detectors go as far as the raw outputs of their heads; of
two-stage detectors, backbone and neck are exported. Convolutions, batch norms and attention are
made one first where that is exact. Then onnxruntime runs the file on images at three sizes, and no
file is left where a difference from the model is above the tolerance. docs/deployment.md has more.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor

from ..cost.command_line import ConfigOptions, Parser, pixels, positive_integer
from ..cost.config import default_image_shape
from ..cost.text import plain_table
from ..deployment import (
    PARTS,
    Agreement,
    Deployed,
    ExportError,
    Normalization,
    agreements,
    choose_part,
    deployed,
    write_onnx,
)
from ..deployment.images import batch_of, images_of_test_set, made_images, read_images
from ..deployment.onnx_file import DIMENSIONS, check_packages
from ..deployment.parts import kind_of
from ..plugging.fusing import fused
from ..version import __version__
from ..visualization.report import replacing
from .checkpoints import (
    UserError,
    built,
    check_files,
    load_exactly,
    read_checkpoint,
    run_command,
    say,
)

EXAMPLE = """kronattn export configs/shift_and_balance/ssd/ssd300-sb_voc0712.py epoch_24.pth
  kronattn export CONFIG.py epoch_24.pth --out model.onnx --images photos/*.jpg --normalize"""
# Images in the batches that a file is tried with, one for each size; the first is exported with.
_BATCHES = (2, 3, 1)


class TooFar(Exception):
    """A graph whose results are not the model's."""


def parse_arguments(argv: Sequence[str] | None = None) -> tuple[Parser, argparse.Namespace]:
    parser = Parser(__doc__, EXAMPLE)
    parser.add_argument(
        'config',
        metavar='CONFIG',
        help='config file of an mmdet, mmseg or mmpretrain model, or the name of one that they '
        'ship, such as mmdet::ssd/ssd300_coco.py',
    )
    parser.add_argument(
        'checkpoint', metavar='CHECKPOINT', help='trained weights of that config (file or URL)'
    )
    parser.add_argument(
        '--out',
        type=Path,
        metavar='FILE.onnx',
        help='file to write (default: the name of CHECKPOINT, in the current folder)',
    )
    parser.add_argument(
        '--part',
        choices=PARTS,
        help='outputs: with the head; features: backbone and neck (default: outputs where that '
        'can be exported)',
    )
    parser.add_argument(
        '--shape',
        nargs=2,
        type=pixels,
        metavar=('H', 'W'),
        help='height and width to export with and to compare at first (default: what the '
        "config's test pipeline resizes to, or a common size; it is printed)",
    )
    parser.add_argument(
        '--check-shape',
        nargs=2,
        type=pixels,
        action='append',
        metavar=('H', 'W'),
        help='another size to compare at; may be given again (default: two, one of them odd)',
    )
    parser.add_argument(
        '--fix',
        nargs='+',
        choices=list(DIMENSIONS),
        default=[],
        metavar='DIMENSION',
        help='batch, height, width: do not leave these open in the file',
    )
    parser.add_argument(
        '--batch',
        type=positive_integer,
        metavar='N',
        help='images in a batch, with --fix batch (default: 1)',
    )
    parser.add_argument(
        '--normalize',
        action='store_true',
        help='put the order of the channels, mean and standard deviation of the data '
        'preprocessor into the graph, which then takes BGR images with values 0 to 255',
    )
    parser.add_argument('--no-fuse', action='store_true', help='leave batch norms as they are')
    parser.add_argument(
        '--images',
        nargs='+',
        metavar='IMAGE',
        default=[],
        help="images to compare on (default: the first of the config's test set; made ones where "
        'that is not there, which is said)',
    )
    parser.add_argument(
        '--tolerance',
        type=_share,
        default=1e-4,
        metavar='T',
        help='largest difference that passes, in units of the largest value of that output '
        '(default: %(default)s)',
    )
    parser.add_argument('--json', action='store_true', help='print JSON instead of text')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help='replace entries of the config, such as model.backbone.depth=101',
    )
    arguments = parser.parse_args(argv)
    if arguments.batch and 'batch' not in arguments.fix:
        parser.error('--batch goes with --fix batch; the batch is left open otherwise')
    if arguments.check_shape and {'height', 'width'} <= set(arguments.fix):
        parser.error('--check-shape has no use where --fix height width leaves one size')
    if arguments.out is not None and arguments.out.suffix != '.onnx':
        parser.error(f'--out must end with .onnx, got {arguments.out}')
    return parser, arguments


def main(argv: Sequence[str] | None = None) -> int:
    parser, arguments = parse_arguments(argv)
    try:
        return run_command(parser.prog, lambda: _export(arguments))
    except (TooFar, ExportError) as error:
        print(f'{parser.prog}: error: {error}', file=sys.stderr)
        return 1


def _export(arguments: argparse.Namespace) -> int:
    check_packages()
    out = arguments.out or Path(Path(arguments.checkpoint).stem + '.onnx')
    check_files(out, [arguments.config, arguments.checkpoint], arguments.images)
    model, config = built(arguments.config, arguments.cfg_options)
    part, note = choose_part(model, arguments.part)
    if note:
        say(f'note: {note}')
    checkpoint = read_checkpoint(arguments.checkpoint)
    load_exactly(model, checkpoint['state_dict'], arguments.checkpoint)
    shape, source = _shape(arguments, config)
    say(f'height {shape[0]}, width {shape[1]} ({source})')
    images, images_source = _images(arguments, config, shape)
    normalization = Normalization.of(model.data_preprocessor)
    batches = [
        images_of if arguments.normalize else normalization(images_of)
        for images_of in (batch_of(images, *size) for size in _sizes(arguments, shape))
    ]
    module = _deployed(model, batches[0], part, normalization if arguments.normalize else None)
    graph = module if arguments.no_fuse else _fused(module, batches[0], arguments.tolerance)
    facts = dict(
        config=arguments.config,
        checkpoint=Path(arguments.checkpoint).name,
        model=f'{type(model).__name__} ({kind_of(model)})',
        part=part,
        classes=_classes(config, checkpoint),
        input=dict(
            shape='batch, channels, height, width',
            normalized_inside=arguments.normalize,
            **normalization.as_dict(),
        ),
        fixed=list(arguments.fix),
        fused=not arguments.no_fuse,
        kronattn_mm=__version__,
        torch=torch.__version__,
    )
    with replacing(out) as draft:
        say('making the graph (10 s to a minute) ...')
        write_onnx(graph, batches[0], draft, arguments.fix, facts)
        say(f'comparing on {len(images)} image{"s" * (len(images) > 1)}: {images_source} ...')
        rows = agreements(draft, module, batches)
        far = [row for row in rows if not row.relative <= arguments.tolerance]
        if not arguments.json:
            print(_text(rows))
        if far:
            worst = max(far, key=lambda row: row.relative)
            raise TooFar(
                f'{worst.output} at {_size(worst)} differs by {worst.largest:.3g}, '
                f'{worst.relative:.3g} of its largest value; --tolerance is '
                f'{arguments.tolerance:g}, no file was written'
            )
    _report(arguments, out, rows, facts, images_source)
    return 0


def _shape(arguments: argparse.Namespace, config: Config) -> tuple[tuple[int, int], str]:
    if arguments.shape is not None:
        return tuple(arguments.shape), '--shape'
    return default_image_shape(config)


def _sizes(
    arguments: argparse.Namespace, shape: tuple[int, int]
) -> list[tuple[int, tuple[int, int]]]:
    """Batch and shape of each comparison; the first is that of the export."""
    height, width = shape
    others = arguments.check_shape or [
        # Larger ones, as networks whose last maps are one pixel take no smaller images.
        ((height + height // 8) | 1, (width + width // 16) | 1),
        (-(-height * 5 // 128) * 32, -(-width * 9 // 256) * 32),
    ]
    sizes = []
    for number, (other_height, other_width) in enumerate([shape, *others]):
        size = (
            height if 'height' in arguments.fix else other_height,
            width if 'width' in arguments.fix else other_width,
        )
        batch = _BATCHES[number % len(_BATCHES)]
        sizes.append((arguments.batch or 1 if 'batch' in arguments.fix else batch, size))
    return list(dict.fromkeys(sizes))


def _images(
    arguments: argparse.Namespace, config: Config, shape: tuple[int, int]
) -> tuple[list[Any], str]:
    number = max(_BATCHES)
    if arguments.images:
        return read_images(arguments.images), '--images'
    try:
        return images_of_test_set(config, number), "the config's test set"
    except ValueError as error:
        say(f'note: {error}; made images are taken, --images names real ones')
        return made_images(number, shape), 'made ones'


def _deployed(
    model: torch.nn.Module, example: Tensor, part: str, normalization: Normalization | None
) -> Deployed:
    try:
        return deployed(model, example, part, normalization)
    except ValueError as error:
        raise UserError(f'{error}; --shape gives another size') from error


def _fused(module: Deployed, example: Tensor, tolerance: float) -> Deployed:
    try:
        return fused(module, example, max(tolerance, 1e-6))
    except (RuntimeError, ValueError) as error:
        raise UserError(f'batch norms cannot be folded: {error}; --no-fuse leaves them') from error


def _classes(config: Config, checkpoint: Mapping[str, Any]) -> list[str]:
    """Names of the classes: the checkpoint's, the config's, or those of its data set's class."""
    from mmengine.registry import DATASETS, DefaultScope

    meta = checkpoint.get('meta') or {}
    for found in (meta.get('dataset_meta'), meta):
        if isinstance(found, Mapping) and (found.get('classes') or found.get('CLASSES')):
            return list(found.get('classes') or found.get('CLASSES'))
    dataset = (config.get('test_dataloader') or {}).get('dataset') or {}
    while 'dataset' in dataset:
        dataset = dataset['dataset']
    if (dataset.get('metainfo') or {}).get('classes'):
        return list(dataset['metainfo']['classes'])
    with DefaultScope.overwrite_default_scope(config.get('default_scope')):
        cls = DATASETS.get(dataset['type']) if 'type' in dataset else None
    return list((getattr(cls, 'METAINFO', None) or {}).get('classes') or [])


def _text(rows: Sequence[Agreement]) -> str:
    """A table: outputs below each other, sizes side by side, difference and share in the cells."""
    sizes = list(dict.fromkeys(row.images for row in rows))
    cells = {(row.output, row.images): row for row in rows}
    names = list(dict.fromkeys(row.output for row in rows))
    header = ['largest difference (relative)', *('x'.join(map(str, size)) for size in sizes)]
    body = [
        [
            name,
            *(
                f'{cells[name, size].largest:.1e} ({cells[name, size].relative:.1e})'
                for size in sizes
            ),
        ]
        for name in names
    ]
    return plain_table(header, body, left=1)


def _size(row: Agreement) -> str:
    return 'x'.join(map(str, row.images))


def _report(
    arguments: argparse.Namespace,
    out: Path,
    rows: Sequence[Agreement],
    facts: Mapping[str, Any],
    images_source: str,
) -> None:
    worst = max(row.relative for row in rows)
    if arguments.json:
        content = dict(
            file=str(out),
            bytes=out.stat().st_size,
            images=images_source,
            largest_relative_difference=worst,
            agreements=[
                dict(
                    images=list(row.images),
                    output=row.output,
                    shape=list(row.shape),
                    largest=row.largest,
                    relative=row.relative,
                )
                for row in rows
            ],
            metadata=facts,
        )
        print(json.dumps(content, indent=2))
        return
    left_open = [name for name in DIMENSIONS if name not in arguments.fix]
    print(
        f'wrote {out}: {len({row.output for row in rows})} outputs, '
        f'{out.stat().st_size / 1e6:.1f} MB, '
        f'{", ".join(left_open) or "no dimension"} left open, '
        f'{"as it is" if arguments.no_fuse else "batch norms folded"}; '
        f'largest difference {worst:.1e} of the largest value, on {images_source}'
    )


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < float('inf'):
        raise ValueError
    return value


_share.__name__ = 'number of at least 0'  # argparse: "invalid number of at least 0 value: 'x'"

if __name__ == '__main__':
    sys.exit(main())
