#!/usr/bin/env python
"""Show in which layers of trained networks the gates let no gradient through.

"Shift-and-Balance Attention" (arXiv 2103.13080) argues that the gate of Squeeze-and-Excite, where
it is saturated, stops the gradient of the attention branch and of the trunk, and that the gate of
Shift-and-Balance can only stop that of the branch. For each layer with a gate this measures the
share of channels whose gradient factor is below 1e-3: of the gate alone, of the attention term, of
the trunk's term, and of both. docs/shift_and_balance.md has the factors.

RUN is a folder that training left (--work-dir of train.py, or a folder in runs/ of
attended_convs.py); its last checkpoint and the pictures of its validation are used.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EXAMPLE = """\
example:
  python tools/studies/gate_saturation.py out/study/runs/x0.35_se-3_seed0 \\
      out/study/runs/x0.35_sb-3_seed0 --png gates.png
"""
SHARES = ('gate', 'attention', 'trunk', 'both')


class GateError(Exception):
    """Something the user can put right, said in one line."""


def parse_arguments(
    argv: list[str] | None = None,
) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    from kronattn_mm.cost.command_line import positive_integer
    from kronattn_mm.visualization.gates import THRESHOLD

    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('runs', type=Path, nargs='+', metavar='RUN', help='folder of a training')
    parser.add_argument(
        '--batches',
        type=positive_integer,
        default=4,
        metavar='N',
        help='batches of the validation pictures (default: 4)',
    )
    parser.add_argument(
        '--threshold',
        type=_number,
        default=THRESHOLD,
        metavar='X',
        help='below this a factor counts as vanished (default: 0.001)',
    )
    parser.add_argument('--png', type=_png, metavar='FILE.png', help='draw the shares by layer')
    parser.add_argument('--json', action='store_true', help='print JSON instead of a table')
    return parser, parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the tool; returns the exit status."""
    parser, arguments = parse_arguments(argv)
    try:
        networks = {}
        for run in arguments.runs:
            print(f'measuring {run} ...', file=sys.stderr)
            networks[run.name] = measure(run, arguments.batches, arguments.threshold)
        print(json.dumps(as_dict(networks), indent=2) if arguments.json else text(networks))
        if arguments.png:
            from kronattn_mm.visualization.study_chart import draw_layers

            draw_layers(
                arguments.png,
                {name: list(recorder.records.values()) for name, recorder in networks.items()},
                f'Share of channels with a factor below {arguments.threshold:g}, by layer',
            )
            print(f'wrote {arguments.png}', file=sys.stderr)
    except (GateError, ImportError, OSError, ValueError) as error:
        print(f'{parser.prog}: error: {error}', file=sys.stderr)
        return 1
    return 0


def measure(run: Path, batches: int, threshold: float) -> Any:
    """Return a GateRecorder that has seen the first pictures of a run's validation.

    Raises:
        GateError: If the folder is not one of a training, or its network has no gates.
    """
    import torch
    from mmengine.config import Config
    from mmengine.registry import DefaultScope
    from mmengine.runner import Runner, find_latest_checkpoint

    from kronattn_mm.cost.config import quiet
    from kronattn_mm.visualization.gates import GateRecorder

    configs = sorted(run.glob('*.py'))
    if len(configs) != 1:
        raise GateError(
            f'{run} holds {len(configs) or "no"} config files; a folder that training left has one'
        )
    if not (run / 'last_checkpoint').is_file():
        raise GateError(f'{run} has no last_checkpoint; nothing was trained there')
    config = Config.fromfile(configs[0])
    config.load_from = find_latest_checkpoint(str(run))
    config.update(resume=False, log_level='ERROR', experiment_name=f'gates_{run.name}')
    with tempfile.TemporaryDirectory() as folder, quiet():
        config.work_dir = folder  # the run's own logs stay as they are
        runner = Runner.from_cfg(config)
        runner.load_or_resume()
        recorder = GateRecorder(runner.model, threshold)
        if recorder.records:
            runner.model.eval()
            loader = runner.build_dataloader(config.val_dataloader)
            with recorder.recording(), torch.no_grad():
                for _, batch in zip(range(batches), loader, strict=False):
                    runner.model.val_step(batch)
    DefaultScope._instance_dict.clear()
    if not recorder.records:
        raise GateError(f'the network of {run} has no layer with a gate')
    return recorder


def text(networks: Mapping[str, Any]) -> str:
    """Lay out one table for each network."""
    from kronattn_mm.cost.text import plain_table

    parts = []
    for name, recorder in networks.items():
        rows = []
        for record in recorder.records.values():
            mean = '-' if record.lambdas is None else f'{record.lambdas.abs().mean():.3f}'
            rows.append(
                [
                    record.name,
                    record.kind,
                    str(record.gate).lower(),
                    mean,
                    *(f'{record.share(what):.2%}' for what in SHARES),
                ]
            )
        rows.append(['all', '', '', '', *(f'{share:.2%}' for share in recorder.shares().values())])
        parts.append(
            f'{name}\n\n'
            + plain_table(
                [
                    'layer',
                    'kind',
                    'gate',
                    'mean of\n|lambda|',
                    'gate',
                    'attention\nterm',
                    "trunk's\nterm",
                    'both',
                ],
                rows,
                left=3,
                total=True,
            )
        )
    return '\n\n'.join(parts)


def as_dict(networks: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same as plain data."""
    return {
        name: dict(
            below=recorder.shares(),
            layers=[
                dict(
                    name=record.name,
                    kind=record.kind,
                    gate=record.gate,
                    lambdas=None if record.lambdas is None else record.lambdas.tolist(),
                    channels=record.channels,
                    below={what: record.share(what) for what in SHARES},
                )
                for record in recorder.records.values()
            ],
        )
        for name, recorder in networks.items()
    }


def _number(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise ValueError
    return value


def _png(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() != '.png':
        raise ValueError
    return path


# argparse: "invalid positive integer value: '0'"
_number.__name__ = 'positive number'
_png.__name__ = 'PNG file name'

if __name__ == '__main__':
    sys.exit(main())
