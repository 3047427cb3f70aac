"""What each inserted layer contributes: evaluate with all on, all off, and each one off in turn.

Nothing is trained. The evaluation is that of the config (test_dataloader and test_evaluator). A
layer that matters little here may still have mattered while the others learned.

"All off" is the plain model only if the rest was frozen during training, statistics of batch norms
included. With --plain that is checked, and the plain model is evaluated too if it was not.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from mmengine.config import Config
from torch import nn

from ..cost.command_line import ConfigOptions, Parser
from ..cost.config import load_config, quiet, without_weights
from ..plugging.base_identity import base_state, moved_from
from ..plugging.convs import Replacement
from ..plugging.removal import added_keys
from ..plugging.switching import Switched, attention_disabled, attention_scaled, select
from .checkpoints import UserError, load_exactly, read_checkpoint, run_command, say

EXAMPLE = """kronattn ablate my_config.py work_dirs/my_config/epoch_12.pth --plain plain.pth \\
      --strength 0,0.5,1,1.5 --out-dir out/ablation"""
_ON, _OFF, _PLAIN = 'all on', 'all off', 'plain checkpoint'
# The figures that papers report; others are in the JSON.
_SHOWN = ('bbox_mAP', 'segm_mAP', 'bbox_mAP_50', 'segm_mAP_50', 'mIoU', 'mAP', 'accuracy/top1')


@dataclass(frozen=True)
class Setting:
    """One evaluation: its name, and what is switched for it."""

    name: str
    context: Callable[[], AbstractContextManager]
    strength: float | None = None


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(__doc__, EXAMPLE)
    parser.add_argument('config', metavar='CONFIG', help='config with kronattn_mm.Plugged')
    parser.add_argument('checkpoint', metavar='CHECKPOINT', help='trained weights of that config')
    parser.add_argument(
        '--points',
        metavar='WORDS',
        help='only these, such as res3-4+neck (default: every inserted layer, and '
        'the convolutions of each entry of `convs` together)',
    )
    parser.add_argument('--each-conv', action='store_true', help='replaced convolutions one by one')
    parser.add_argument(
        '--strength',
        type=_strengths,
        default=[],
        metavar='S,S,...',
        help='evaluate with what all layers add multiplied by these, too',
    )
    parser.add_argument(
        '--plain', metavar='PLAIN.pth', help='the plain checkpoint that training started from'
    )
    parser.add_argument(
        '--metric',
        nargs='+',
        metavar='NAME',
        help='metrics to show, the first one in the chart (default: those that papers report)',
    )
    parser.add_argument(
        '--out-dir',
        type=Path,
        default=Path('out/ablation'),
        metavar='DIR',
        help='folder for ablation.json and ablation.png (default: %(default)s)',
    )
    parser.add_argument('--json', action='store_true', help='print JSON instead of a table')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help='replace entries of the config',
    )
    arguments = parser.parse_args(argv)
    return run_command(parser.prog, lambda: _ablate(arguments))


def _strengths(text: str) -> list[float]:
    try:
        values = [float(word) for word in text.split(',')]
    except ValueError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise argparse.ArgumentTypeError(f'expected numbers such as 0,0.5,1, got {text!r}')
    return values


def _ablate(arguments: argparse.Namespace) -> int:
    runner = _runner(arguments)
    model = runner.model
    checkpoint = read_checkpoint(arguments.checkpoint)
    load_exactly(model, checkpoint['state_dict'], arguments.checkpoint)
    plain = read_checkpoint(arguments.plain)['state_dict'] if arguments.plain else None
    note, moved = _off_is_plain(model, plain, checkpoint.get('kronattn_mm_base'))
    settings = _settings(model, arguments)
    number = len(settings) + (plain is not None and moved)
    say(f'{number} evaluations; {note}')
    content = dict(config=arguments.config, checkpoint=arguments.checkpoint, note=note, results=[])
    started = time.monotonic()

    def evaluate(setting: Setting) -> None:
        with setting.context():
            metrics = _metrics(runner)
        content['results'].append(
            dict(setting=setting.name, strength=setting.strength, metrics=metrics)
        )
        _write(content, arguments.out_dir / 'ablation.json')  # what has been measured stays
        done = len(content['results'])
        left = (time.monotonic() - started) / done * (number - done)
        say(
            f'[{done}/{number}] {setting.name}: '
            + ', '.join(f'{name} {value:.4g}' for name, value in _chosen(metrics, arguments.metric))
            + (f'; about {_duration(left)} left' if done < number else '')
        )

    for setting in settings:
        evaluate(setting)
    if plain is not None and moved:
        load_exactly(
            model, {key: value for key, value in plain.items()}, arguments.plain, added_keys(model)
        )
        evaluate(Setting(_PLAIN, lambda: attention_disabled(model)))
    shown = [name for name, _ in _chosen(content['results'][0]['metrics'], arguments.metric)]
    _draw(content, shown[0], note, arguments.out_dir / 'ablation.png')
    print(
        json.dumps(content, indent=2)
        if arguments.json
        else f'{_table(content["results"], shown)}\n{note}\nwritten: '
        f'{arguments.out_dir / "ablation.json"}, {arguments.out_dir / "ablation.png"}'
    )
    return 0


def _runner(arguments: argparse.Namespace) -> Any:
    """Make mmengine's runner for the tests of the config, without what trains and what it draws."""
    import importlib

    from mmengine.model import revert_sync_batchnorm
    from mmengine.registry import init_default_scope
    from mmengine.runner import Runner

    config: Config = load_config(arguments.config, arguments.cfg_options)
    for name in ('test_dataloader', 'test_evaluator', 'test_cfg'):
        if config.get(name) is None:
            raise UserError(f'{arguments.config} has no {name}, so nothing can be evaluated')
    for name in (
        'train_dataloader',
        'train_cfg',
        'optim_wrapper',
        'param_scheduler',
        'val_dataloader',
        'val_cfg',
        'val_evaluator',
        'auto_scale_lr',
    ):
        config[name] = None
    config.default_hooks = dict(logger=None, checkpoint=None)
    config.custom_hooks, config.visualizer = [], None
    config.load_from, config.resume, config.launcher = None, False, 'none'
    config.log_level = 'ERROR'
    config.work_dir = str(arguments.out_dir / 'log')
    without_weights(config.model)
    say(f'building the model of {arguments.config} ...')
    try:
        with quiet():
            scope = config.get('default_scope')
            if scope is not None:
                importlib.import_module(scope)
                init_default_scope(scope)
            runner = Runner.from_cfg(config)
            runner.model = revert_sync_batchnorm(runner.model)
            runner._test_loop = runner.build_test_loop(runner._test_loop)
    except Exception as error:  # whatever datasets and metrics of any library raise
        raise UserError(
            f'the test of {arguments.config} cannot be set up: '
            f'{" ".join(str(error).split())[:300] or repr(error)}'
        ) from error
    return runner


def _metrics(runner: Any) -> dict[str, float]:
    with quiet():
        metrics = runner.test()
    return {name: float(value) for name, value in metrics.items() if isinstance(value, Real)}


def _settings(model: nn.Module, arguments: argparse.Namespace) -> list[Setting]:
    groups: dict[str, list[Any]] = {}
    for name, part in select(model, arguments.points).items():
        groups.setdefault(_group(name, part, arguments.each_conv), []).append(part)
    settings = [Setting(_ON, nullcontext), Setting(_OFF, lambda: attention_disabled(model))]
    if len(groups) > 1 or arguments.points:
        settings += [Setting(f'{name} off', _off(parts)) for name, parts in groups.items()]
    settings += [
        Setting(f'strength {strength:g}', _scaled(model, strength), strength)
        for strength in arguments.strength
    ]
    return settings


def _group(name: str, part: Any, each_conv: bool) -> str:
    if not isinstance(part, Replacement) or each_conv:
        return name
    words = f'convs {part.at}'
    return words if len(words) < 30 else words[:27] + '...'


def _off(parts: Iterable[Any]) -> Callable[[], Switched]:
    return lambda: Switched(parts, 'enabled', False)


def _scaled(model: nn.Module, strength: float) -> Callable[[], Switched]:
    return lambda: attention_scaled(model, strength)


def _off_is_plain(
    model: nn.Module, plain: Mapping[str, Any] | None, start: Mapping[str, str] | None
) -> tuple[str, bool]:
    """Say whether "all off" is the plain model; ``start`` is what SmallFileHook wrote down."""
    reference = plain if plain is not None else start
    if reference is None:
        return (
            'whether "all off" is the plain model is not known: it is if the rest was frozen '
            '(--plain CHECKPOINT would tell)',
            True,
        )
    moved = moved_from(reference, model, base_state(model))
    if not moved:
        return '"all off" is the plain model: the rest did not move during training', False
    return (
        '"all off" is not the plain model: training changed the rest too '
        f'({len(moved.weights)} weights, {len(moved.statistics)} statistics of batch norms)',
        True,
    )


def _chosen(metrics: Mapping[str, float], names: Sequence[str] | None) -> list[tuple[str, float]]:
    if names:
        unknown = [name for name in names if name not in metrics]
        if unknown:
            raise UserError(f'there is no metric {unknown[0]!r}; there are {", ".join(metrics)}')
        return [(name, metrics[name]) for name in names]
    known = [
        (name, value)
        for word in _SHOWN
        for name, value in metrics.items()
        if name == word or name.endswith(f'/{word}')
    ]
    if not metrics:
        raise UserError('the evaluation gives no metrics')
    return known or list(metrics.items())[:4]


def _table(results: Sequence[Mapping[str, Any]], shown: Sequence[str]) -> str:
    first = results[0]['metrics']
    rows = [['', *shown]]
    for result in results:
        cells = []
        for name in shown:
            value = result['metrics'].get(name, math.nan)
            change = f' ({value - first[name]:+.4g})' if result is not results[0] else ''
            cells.append(f'{value:.4g}{change}')
        rows.append([result['setting'], *cells])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return '\n'.join(
        '  '.join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        )
        for row in rows
    )


def _draw(content: Mapping[str, Any], metric: str, note: str, path: Path) -> None:
    from ..visualization.ablation_chart import draw_ablation

    results = content['results']
    draw_ablation(
        path,
        metric,
        {
            result['setting']: result['metrics'].get(metric, math.nan)
            for result in results
            if result['strength'] is None
        },
        {
            result['strength']: result['metrics'].get(metric, math.nan)
            for result in results
            if result['strength'] is not None
        },
        note,
    )


def _write(content: Mapping[str, Any], path: Path) -> None:
    from ..visualization.report import write_text

    write_text(path, json.dumps(content, indent=2) + '\n')


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.0f} min' if seconds < 5400 else f'{seconds / 3600:.1f} h'
