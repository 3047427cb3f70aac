"""Take the inserted layers out of a checkpoint, so that it loads into the plain model.

Which keys go is decided by the modules that the config inserts, not by their names. What the
checkpoint says of the run stays; the state of the optimizer, which is one of the plugged model,
does not.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ..cost.command_line import Parser
from ..plugging.removal import added_keys, strip, unplug
from ..plugging.small_file import SmallFileError
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

EXAMPLE = """kronattn strip my_config.py work_dirs/my_config/epoch_12.pth plain.pth \\
      --images photos/*.jpg"""
_OF_PLUGGED = ('optimizer', 'param_schedulers')


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(__doc__, EXAMPLE)
    parser.add_argument('config', metavar='CONFIG', help='config with kronattn_mm.Plugged')
    parser.add_argument('checkpoint', metavar='CHECKPOINT', help='weights of that config')
    parser.add_argument('output', metavar='OUT.pth', type=Path, help='plain checkpoint to write')
    add_check_arguments(parser)
    arguments = parser.parse_args(argv)
    return run_command(parser.prog, lambda: _strip(arguments))


def _strip(arguments: argparse.Namespace) -> int:
    check_files(arguments.output, (arguments.config, arguments.checkpoint), arguments.images)
    model, config = built(arguments.config, arguments.cfg_options)
    ours = added_keys(model)
    if not ours:
        raise SmallFileError(f'{arguments.config} inserts nothing, so there is nothing to strip')
    checkpoint = read_checkpoint(arguments.checkpoint)
    load_exactly(model, checkpoint['state_dict'], arguments.checkpoint, ours)
    rest, removed = strip(checkpoint['state_dict'], ours)
    content = {key: value for key, value in checkpoint.items() if key not in _OF_PLUGGED}
    content['state_dict'] = rest
    if 'ema_state_dict' in content:
        content['ema_state_dict'], _ = strip(content['ema_state_dict'], ours)
    write_checkpoint(content, arguments.output)

    rows, change, passed, text = [], [], True, ''
    if arguments.images:
        # The proof: the plain model with this checkpoint is the plugged one with layers off.
        plain = unplug(built(arguments.config, arguments.cfg_options)[0])
        load_exactly(plain, read_checkpoint(arguments.output)['state_dict'], str(arguments.output))
        say(f'comparing on {len(arguments.images)} images ...')
        with attention_disabled(model):
            rows = compare(model, plain, config, arguments.images)
        change = compare(model, plain, config, arguments.images)
        text, passed = verdict(
            rows, arguments.tolerance, 'the plain model, and the plugged one with its layers off'
        )
    dropped = [key for key in _OF_PLUGGED if key in checkpoint]
    if arguments.json:
        print(
            json.dumps(
                dict(
                    file=str(arguments.output),
                    removed=removed,
                    dropped=dropped,
                    images=as_dicts(rows),
                    change=as_dicts(change),
                    passed=passed,
                ),
                indent=2,
            )
        )
    else:
        print(
            f'{arguments.output}: {len(rest)} tensors, {len(removed)} of inserted layers are out'
            + (f'; left out as well: {", ".join(dropped)}' if dropped else '')
        )
        if text:
            print(text)
            print(verdict(change, float('inf'), 'without the layers, and with them')[0])
    if not passed:
        print(f'{Path(sys.argv[0]).name}: error: {text}', file=sys.stderr)
    return 0 if passed else 1
