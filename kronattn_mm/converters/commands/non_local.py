"""Trained non-local blocks as efficient attention: theta, phi, g and conv_out one by one.

mmcv's NonLocal1d, NonLocal2d and NonLocal3d, as plugins of mmdet, at points of kronattn_mm.Plugged
or in mmseg's NLHead. Exact up to rounding for mode='dot_product' (our normalization='scaling');
a start for fine-tuning for the softmax modes: --compare prints how far off. Weights do not tell
the mode: give --mode, or --source-config to have it looked up for every block.
"""

import argparse
import sys
from pathlib import Path

import torch

from ...cost.command_line import Parser
from ...cost.config import load_model
from ..checkpoint import Checkpoint, ConversionError
from ..command_line import add_file_arguments, add_target_arguments, pairs, run
from ..conversion import Conversion
from ..non_local import (
    MODES,
    TARGETS,
    Settings,
    compare,
    convert,
    convert_back,
    find_blocks,
    settings_in,
    settings_of,
)
from ..probe import maps_at

EXAMPLE = """kronattn convert non-local nl.pth ea.pth --mode embedded_gaussian --compare
  kronattn convert non-local nl.pth ea.pth --source-config nl_config.py \\
      --config ea_config.py --compare street.jpg
  kronattn convert non-local ea.pth nl.pth --back --mode dot_product"""


def main(argv: list[str] | None = None) -> int:
    parser = Parser(__doc__, EXAMPLE)
    add_file_arguments(parser)
    add_target_arguments(parser)
    parser.add_argument('--mode', choices=MODES, help='mode of all blocks')
    parser.add_argument(
        '--no-scale',
        action='store_true',
        help='the blocks have use_scale=False (of no effect with dot_product)',
    )
    parser.add_argument(
        '--norm-eps',
        type=float,
        default=1e-5,
        metavar='EPS',
        help='epsilon of the batch norm in conv_out, if there is one '
        '(default: 1e-5, the usual one)',
    )
    parser.add_argument(
        '--source-config',
        metavar='CONFIG',
        help='config of the model with the non-local blocks; says mode, scale and epsilon of each',
    )
    parser.add_argument(
        '--place',
        nargs='+',
        default=[],
        metavar='OLD=NEW',
        help='where the block at the module path OLD goes (default: the same '
        'point, plugin or place in the head)',
    )
    parser.add_argument(
        '--to',
        choices=TARGETS,
        default=TARGETS[0],
        help='layer to make of the blocks (default: EfficientAttention); into '
        'RegularAttention, which is quadratic too, every mode is exact',
    )
    parser.add_argument(
        '--without-sub-sample',
        action='store_true',
        help='convert blocks with sub_sample, whose pooling is lost',
    )
    parser.add_argument(
        '--back', action='store_true', help='the other way: attention blocks to non-local blocks'
    )
    parser.add_argument(
        '--compare',
        nargs='?',
        const='',
        metavar='IMAGE',
        help='print how much the outputs of each block differ, on random maps or '
        'on what it sees of IMAGE (needs --source-config)',
    )
    arguments = parser.parse_args(argv)
    _check(parser, arguments)
    places = pairs(parser, '--place', arguments.place)

    def converter(source: Checkpoint, model: torch.nn.Module | None) -> Conversion:
        if arguments.back:
            settings = Settings(arguments.mode, not arguments.no_scale)
            return convert_back(source.state, settings, places, model)
        if arguments.source_config is None:
            theirs = None
            settings = Settings(arguments.mode, not arguments.no_scale, norm_eps=arguments.norm_eps)
        else:
            theirs, _ = load_model(arguments.source_config)
            settings = settings_in(theirs)
        conversion = convert(
            source.state, settings, places, arguments.to, arguments.without_sub_sample, model
        )
        if arguments.compare is not None:
            conversion.notes += _differences(source, theirs, settings, arguments)
        return conversion

    return run(parser, arguments, converter)


def _check(parser: Parser, arguments: argparse.Namespace) -> None:
    if (arguments.mode is None) == (arguments.source_config is None):
        parser.error('give --mode or --source-config, one of them: weights do not tell the mode')
    if arguments.back:
        for name in ('source_config', 'compare', 'without_sub_sample'):
            if getattr(arguments, name) not in (None, False):
                parser.error(f'--{name.replace("_", "-")} does not go with --back')
    if arguments.compare and arguments.source_config is None:
        parser.error('--compare IMAGE needs --source-config: the picture goes through that model')


def _differences(
    source: Checkpoint,
    model: torch.nn.Module | None,
    settings: object,
    arguments: argparse.Namespace,
) -> list[str]:
    blocks = find_blocks(source.state)
    if arguments.compare:
        if not Path(arguments.compare).is_file():
            raise ConversionError(f'there is no picture {arguments.compare}')
        maps = maps_at(model, source.state, list(blocks), arguments.compare)
        where = arguments.compare
    else:
        maps = {prefix: _random_map(weights) for prefix, weights in blocks.items()}
        where = 'random maps'
    lines = []
    for prefix, weights in blocks.items():
        largest, share = compare(
            weights, settings_of(prefix, weights, settings), maps[prefix], arguments.to
        )
        lines.append(
            f'{prefix or "the block"} on {where}, {tuple(maps[prefix].shape)}: largest '
            f'difference {largest:.3g}, {share:.3g} of what the block adds at most'
        )
    return lines


def _random_map(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    weight = weights['conv_out.conv.weight']
    sizes = {1: (256,), 2: (16, 16), 3: (4, 8, 8)}[weight.dim() - 2]
    return torch.randn(1, weight.shape[0], *sizes, generator=torch.Generator().manual_seed(0))


if __name__ == '__main__':
    sys.exit(main())
