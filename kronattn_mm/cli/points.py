"""Where attention can go in the model of a config: every insertion point, ready to paste.

Point, class, channels, stride and shape of each place in backbone, neck and heads, for `insert` of
kronattn_mm.Plugged; and the convolutions that `convs` can replace. No data set and no trained
weights are needed.
"""

import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from ..cost.command_line import Parser, add_model_arguments, model_of, or_error
from ..cost.text import plain_table
from ..listing import ConvGroup, PartPoints, PointEntry, list_points

EXAMPLE = """kronattn points mmdet::retinanet/retinanet_r50_fpn_1x_coco.py
  kronattn points my_config.py backbone --shape 800 1333 --all"""
_DEPTH = 2  # paths with more dots are shown with --all


def main(argv: list[str] | None = None) -> int:
    parser = Parser(__doc__, EXAMPLE)
    add_model_arguments(parser)
    parser.add_argument(
        'parts',
        nargs='*',
        metavar='PART',
        help='only these parts, such as backbone or roi_head.mask_head',
    )
    parser.add_argument(
        '--all',
        action='store_true',
        help='also the places deep inside blocks (JSON always has them)',
    )
    arguments = parser.parse_intermixed_args(argv)
    model, config, shape, source = model_of(parser, arguments)
    parts = or_error(parser, list_points, model, config, shape)
    if arguments.parts:
        parts = _chosen(parser, parts, arguments.parts)
    if arguments.json:
        print(
            json.dumps(
                dict(
                    config=arguments.config,
                    model_type=type(model).__name__,
                    image_shape=list(shape),
                    image_shape_source=source,
                    parts=[_part_dict(part) for part in parts],
                ),
                indent=2,
            )
        )
    else:
        print(
            f'{arguments.config}: {type(model).__name__}, one image of {shape[0]} x {shape[1]}\n'
            f'({source})',
            *(points_text(part, arguments.all) for part in parts),
            sep='\n\n',
        )
    return 0


def _chosen(parser: Parser, parts: Sequence[PartPoints], names: Sequence[str]) -> list[PartPoints]:
    known = {part.part: part for part in parts}
    chosen = []
    for name in names:
        found = [
            part for path, part in known.items() if path == name or path.startswith(f'{name}.')
        ]
        if not found:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f'did you mean {near[0]!r}? ' if near else ''
            parser.error(f'the model has no part {name!r}; {hint}There are {", ".join(known)}')
        chosen += found
    return chosen


def points_text(part: PartPoints, every: bool = False) -> str:
    """Lay out the points of one part.

    Args:
        part (PartPoints): The part.
        every (bool): Places deep inside blocks too. Defaults to False.
    """
    lines = [f'== {part.part}: {part.base}']
    if part.problem:
        lines.append(f'no points: {part.problem}')
    shown = part.words + [entry for entry in part.paths if every or entry.at.count('.') < _DEPTH]
    hidden = len(part.words) + len(part.paths) - len(shown)
    if shown:
        rows = [
            [
                entry.at,
                entry.layer or 'output',
                str(entry.channels),
                _stride(entry),
                'x'.join(map(str, entry.shape[1:])),
                _remark(entry),
            ]
            for entry in shown
        ]
        lines += [
            '',
            plain_table(['insert at', 'after', 'channels', 'stride', 'shape', ''], rows, left=2),
        ]
    if hidden:
        lines.append(f'... and {hidden} more inside blocks (--all)')
    if part.convs:
        rows = [
            [
                group.at,
                str(group.number),
                _kernels(group),
                _range(group.in_channels),
                _range(group.out_channels),
                'depthwise' if group.depthwise else '',
            ]
            for group in part.convs
        ]
        lines += ['', plain_table(['convs at', 'number', 'kernel', 'in', 'out', ''], rows, left=1)]
    if part.paste:
        lines += ['', part.paste]
    return '\n'.join(lines)


def _remark(entry: PointEntry) -> str:
    remarks = []
    if entry.taken:
        remarks.append(f'has {entry.taken}')
    if entry.places > 1:
        remarks.append(f'{entry.places} places')
    if entry.calls > 1 and entry.layer:
        remarks.append(f'{entry.calls} maps, one layer')
    if entry.stride is None and len(entry.shape) == 4:
        remarks.append('for one region')
    return ', '.join(remarks)


def _stride(entry: PointEntry) -> str:
    if entry.stride is None:
        return '-'
    height, width = entry.stride
    return str(height) if height == width else f'{height}x{width}'


def _kernels(group: ConvGroup) -> str:
    return ', '.join('x'.join(map(str, kernel)) for kernel in group.kernels)


def _range(ends: tuple[int, int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f'{ends[0]} to {ends[1]}'


def _part_dict(part: PartPoints) -> dict:
    content = asdict(part)
    for entry, point in zip(
        content['words'] + content['paths'], part.words + part.paths, strict=True
    ):
        entry['channels'] = point.channels
    return content


if __name__ == '__main__':
    sys.exit(main())
