"""Put the layers of a small file onto a plain checkpoint.

CONFIG is either one with kronattn_mm.Plugged, or that of the plain model: the file says what goes
where. The result is a checkpoint for the plugged model.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from torch import nn

from ..cost.command_line import Parser
from ..plugging.removal import added_keys
from ..plugging.small_file import SmallFile, load_attention, plug_from_file, read_small_file
from ..plugging.spec import parts_of, plug_spec
from ..plugging.switching import attention_disabled
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
    write_checkpoint,
)

EXAMPLE = """kronattn attach mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py mask_rcnn_plain.pth \\
      attention.safetensors mask_rcnn_attention.pth --images photos/*.jpg"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(__doc__, EXAMPLE)
    parser.add_argument('config', metavar='CONFIG', help='config of the model, plain or plugged')
    parser.add_argument('plain', metavar='PLAIN.pth', help='checkpoint of the plain model')
    parser.add_argument('file', metavar='FILE.safetensors', help='small file of `kronattn extract`')
    parser.add_argument('output', metavar='OUT.pth', type=Path, help='checkpoint to write')
    parser.add_argument(
        '--check',
        choices=['model', 'parts'],
        default='model',
        help='whether the whole base or only the modules that layers are inserted '
        'into must be those of the file (default: %(default)s)',
    )
    add_check_arguments(parser)
    arguments = parser.parse_args(argv)
    return run_command(parser.prog, lambda: _attach(arguments))


def _attach(arguments: argparse.Namespace) -> int:
    check_files(
        arguments.output, (arguments.config, arguments.plain, arguments.file), arguments.images
    )
    content = read_small_file(arguments.file)
    plain = read_checkpoint(arguments.plain)
    model, config = built(arguments.config, arguments.cfg_options)
    said_plain = not parts_of(model)
    load_exactly(model, plain['state_dict'], arguments.plain, added_keys(model))
    attached = _put(model, content, arguments)
    meta = {**(plain.get('meta') or {}), 'attention': Path(arguments.file).name}
    write_checkpoint(dict(meta=meta, state_dict=model.state_dict()), arguments.output)

    rows, change, passed, text = [], [], True, ''
    if arguments.images:
        # The proof: what was written is, in a model built anew, what was put together here.
        other = _again(content, arguments)
        say(f'comparing on {len(arguments.images)} images ...')
        rows = compare(model, other, config, arguments.images)
        text, passed = verdict(rows, arguments.tolerance, 'the checkpoint written, read again')
        with attention_disabled(other):
            change = compare(model, other, config, arguments.images)
    if arguments.json:
        print(
            json.dumps(
                dict(
                    file=str(arguments.output),
                    loaded=attached.loaded,
                    same_base=attached.same_base,
                    images=as_dicts(rows),
                    change=as_dicts(change),
                    passed=passed,
                ),
                indent=2,
            )
        )
    else:
        print(
            f'{arguments.output}: {len(model.state_dict())} tensors, {attached.loaded} of them '
            f'from {arguments.file}'
        )
        print(
            'the plain checkpoint has the very weights that the layers were trained with'
            if attached.same_base
            else 'note: the plain checkpoint has other weights than those '
            'the layers were trained with, so this is not the model they were trained in'
        )
        if text:
            print(text)
            print(verdict(change, float('inf'), 'with the layers, and without them')[0])
        if said_plain:
            print('a config for it:', *_lines(config, content, arguments.file), sep='\n')
    if not passed:
        print(f'{Path(sys.argv[0]).name}: error: {text}', file=sys.stderr)
    return 0 if passed else 1


def _put(model: nn.Module, content: SmallFile, arguments: argparse.Namespace) -> Any:
    put = load_attention if parts_of(model) else plug_from_file
    return put(model, content, check=arguments.check)


def _again(content: SmallFile, arguments: argparse.Namespace) -> nn.Module:
    other, _ = built(arguments.config, arguments.cfg_options)
    if not parts_of(other):
        plug_spec(other, content.parts)
    load_exactly(other, read_checkpoint(arguments.output)['state_dict'], str(arguments.output))
    return other


def _lines(config: Config, content: SmallFile, file: str) -> list[str]:
    """Write the lines that turn the plain config into one of the plugged model."""
    lines = [f"    _base_ = '{config.filename}'", '    model = dict(']
    for part in content.parts:
        node: Any = config.model
        names = part['path'].split('.')
        for name in names:
            node = node.get(name) if isinstance(node, Mapping) else None
        if not isinstance(node, Mapping):
            return [f'    kronattn_mm.plug_from_file(model, {file!r})  # in Python']
        base = (
            node['type']
            if '.' in node['type']
            else f'{config.get("default_scope") or "mmengine"}.{node["type"]}'
        )
        inner = (
            f"dict(type='kronattn_mm.Plugged', base='{base}',\n"
            f'            attention_weights={file!r})'
        )
        for name in reversed(names[1:]):
            inner = f'dict({name}={inner})'
        lines.append(f'        {names[0]}={inner},')
    return [*lines, '    )']
