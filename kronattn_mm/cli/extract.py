"""Write the inserted layers of a trained checkpoint, alone, to a small safetensors file.

With the plain checkpoint that training started from (--plain), what of the base moved since is
found out, and the file is refused if it would not give the trained model back.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ..cost.command_line import Parser
from ..plugging.removal import added_keys
from ..plugging.small_file import extract_attention, load_attention, read_small_file
from .checkpoints import (
    add_check_arguments,
    as_dicts,
    built,
    check_files,
    compare,
    load_exactly,
    read_checkpoint,
    run_command,
    say,
    verdict,
)

EXAMPLE = """kronattn extract my_config.py work_dirs/my_config/epoch_12.pth attention.safetensors \\
      --plain mask_rcnn_plain.pth --images photos/*.jpg"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(__doc__, EXAMPLE)
    parser.add_argument('config', metavar='CONFIG', help='config with kronattn_mm.Plugged')
    parser.add_argument('checkpoint', metavar='CHECKPOINT', help='trained weights of that config')
    parser.add_argument('output', metavar='OUT.safetensors', type=Path, help='file to write')
    parser.add_argument(
        '--plain', metavar='PLAIN.pth', help='the plain checkpoint that training started from'
    )
    parser.add_argument(
        '--also',
        nargs='+',
        default=[],
        metavar='MODULE',
        help='modules of the base to put into the file as well, such as roi_head.bbox_head.fc_cls',
    )
    parser.add_argument(
        '--include-norms', action='store_true', help="put the base's batch norms into the file"
    )
    parser.add_argument(
        '--allow-moved',
        action='store_true',
        help='write the file even if it does not give the trained model back',
    )
    parser.add_argument(
        '--metrics',
        nargs='+',
        default=[],
        type=_metric,
        metavar='NAME=VALUE',
        help='what was measured, such as coco/bbox_mAP=0.38',
    )
    parser.add_argument('--licence', default='not stated', help='licence of the weights')
    add_check_arguments(parser)
    arguments = parser.parse_args(argv)
    return run_command(parser.prog, lambda: _extract(arguments))


def _metric(text: str) -> tuple[str, float]:
    name, _, value = text.partition('=')
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f'expected NAME=VALUE with a number, got {text!r}'
        ) from None


def _extract(arguments: argparse.Namespace) -> int:
    check_files(
        arguments.output,
        (arguments.config, arguments.checkpoint, arguments.plain),
        arguments.images,
    )
    model, config = built(arguments.config, arguments.cfg_options)
    state = read_checkpoint(arguments.checkpoint)['state_dict']
    load_exactly(model, state, arguments.checkpoint)
    plain = read_checkpoint(arguments.plain)['state_dict'] if arguments.plain else None
    content = extract_attention(
        model,
        config=Path(arguments.config).name,
        plain=plain,
        also=arguments.also,
        include_norms=arguments.include_norms,
        allow_moved=arguments.allow_moved,
        metrics=dict(arguments.metrics),
        licence=arguments.licence,
    )
    content.save(arguments.output)

    # The proof: the file on the plain weights is the trained model.
    other, _ = built(arguments.config, arguments.cfg_options)
    new = set(added_keys(other))
    base = (
        plain
        if plain is not None
        else {key: value for key, value in state.items() if key not in new}
    )
    load_exactly(
        other,
        {key: value for key, value in base.items() if key not in new},
        arguments.plain or arguments.checkpoint,
        new,
    )
    load_attention(other, read_small_file(arguments.output))
    rows = []
    if arguments.images:
        say(f'comparing on {len(arguments.images)} images ...')
        rows = compare(model, other, config, arguments.images)
    whole = sum(value.numel() * value.element_size() for value in state.values())
    size = arguments.output.stat().st_size
    on = 'the plain checkpoint' if arguments.plain else 'the base of the checkpoint'
    text, passed = (
        verdict(rows, arguments.tolerance, f'{on} with the file, and the checkpoint')
        if rows
        else ('', True)
    )
    if arguments.json:
        print(
            json.dumps(
                dict(
                    file=str(arguments.output),
                    bytes=size,
                    tensors=len(content.tensors),
                    moved=content.base['moved'],
                    images=as_dicts(rows),
                    passed=passed,
                ),
                indent=2,
            )
        )
    else:
        print(
            f'{arguments.output}: {len(content.tensors)} tensors, {size / 1e6:.2f} MB (the '
            f'weights of the whole model: {whole / 1e6:.1f} MB)'
        )
        print(_moved(content.base['moved']))
        if text:
            print(text)
    if not passed:
        print(f'{Path(sys.argv[0]).name}: error: {text}', file=sys.stderr)
    return 0 if passed else 1


def _moved(moved: dict[str, int] | None) -> str:
    if moved is None:
        return 'whether the base moved during training is not known (--plain would tell)'
    if not moved['statistics'] and not moved['weights']:
        return 'the base did not move: on the plain checkpoint, the file is the trained model'
    return (
        f'the base moved: {moved["statistics"]} statistics of batch norms, {moved["weights"]} '
        f'weights; {moved["not_in_file"]} of these are not in the file'
    )
