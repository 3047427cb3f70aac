"""What each way of calling ``kronattn bench`` measures and writes."""

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ..benchmark import CONTESTS, PAPER_TABLES, compare
from ..benchmark.contest import judge, run_contest, turns
from ..benchmark.models import compare_models, models_dict, models_text, with_and_without
from ..benchmark.page import check_folder, check_page, folder_of, measure_in_processes, write_page
from ..benchmark.results import Result, bars_text, results_data, results_text
from ..benchmark.rivals import build_layer, default_rivals, enter_layer
from ..benchmark.text import comparison_dict, comparison_text, machine, machine_text
from ..cost.config import ConfigError, default_image_shape, load_model
from ..visualization.report import write_text

# Processes that measure for a page with the allocator as it is, if not said otherwise.
PROCESSES = 5
# Sides of maps by dimensions of the layer: from below d_k positions to well above.
_MAPS = {
    1: ((49,), (196,), (784,), (3136,)),
    2: ((7, 7), (14, 14), (28, 28), (56, 56)),
    3: ((2, 7, 7), (4, 14, 14), (8, 28, 28)),
}


def layer(arguments: argparse.Namespace) -> int:
    """Measure a layer and its rivals over map sizes."""
    channels, batch = arguments.channels or 256, arguments.batch or 1
    dtype = getattr(torch, arguments.dtype or 'float32')
    torch.manual_seed(0)
    try:
        built = build_layer(arguments.layer, channels, arguments.set or {})
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error
    built = built.to(arguments.device, dtype)
    dims = getattr(built, 'spatial_dims', 2)
    # Input and output of the layer; torch draws the input as float32.
    bytes_of_value = max(4, dtype.itemsize) + dtype.itemsize
    maps = arguments.maps or _MAPS[dims]
    for size in maps:
        if len(size) != dims:
            raise ConfigError(
                f'{arguments.layer} takes maps of {dims} dimension(s), got {_name(size)}'
            )
        _check_memory(arguments.device, size, batch * channels * math.prod(size) * bytes_of_value)
    rivals = arguments.against or default_rivals(built)
    settings = _settings(arguments, dtype=arguments.dtype or 'float32')
    results: dict[str, Result] = {}
    for size in maps:
        x = torch.randn(batch, channels, *size).to(arguments.device, dtype)
        try:
            entry, left_out = enter_layer(built, x, rivals, arguments.training)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        figures = _turns(_name(size), entry, arguments.repetitions, arguments.device)
        results[_name(size)] = Result(_name(size), figures, (), left_out)
    kind = 'forward + backward in training mode' if arguments.training else 'forward'
    title = f'{built.__class__.__name__}, {kind}, batch {batch}, {channels} channels'
    print(f'{title}\n{built}\n')
    print(results_text(list(results.values())))
    print(
        f'\ntime: median of {settings["repetitions"]} turns of each, interleaved; ratio: to the '
        'first\npeak: most bytes in use at one time beyond input and weights; kept: for the '
        'backward pass,\n      beside input and weights\noperators: that compute; code made by '
        'torch.compile is not seen\nfloor: the longer of the products at the rate of the same run '
        f'and of one copy\n\n{machine_text(settings)}'
    )
    data = dict(title=title, layer=str(built), settings=settings)
    _write_json(arguments.json, dict(data, contests=results_data(list(results.values()))))
    if arguments.png:
        from ..visualization.benchmark_chart import draw_results

        draw_results(arguments.png, title, results, machine_text(settings))
        print(f'wrote {arguments.png}', file=sys.stderr)
    return 0


def contests(arguments: argparse.Namespace) -> int:
    """Measure contests of docs/performance.md and hold them against their bars."""
    settings = _settings(arguments)
    results = []
    for contest in CONTESTS:
        if arguments.contests and not contest.key.startswith(tuple(arguments.contests)):
            continue
        torch.manual_seed(0)
        entry = contest.enter(arguments.device)
        repetitions = max(arguments.repetitions, contest.repetitions or 0)
        figures = _turns(contest.key, entry, repetitions, arguments.device)
        results.append(Result(contest.title, figures, judge(contest, figures)))
        del entry
    print(results_text(results))
    print(f'\n{bars_text(results)}\n\n{machine_text(settings)}')
    _write_json(arguments.json, dict(settings=settings, contests=results_data(results)))
    return 0


def page(arguments: argparse.Namespace) -> int:
    """Measure all contests with both ways of the allocator and write the page."""
    check_page(arguments.page)
    check_folder(arguments.page, arguments.resume)
    options = ['--repetitions', str(arguments.repetitions)]
    options += ['--threads', str(arguments.threads or torch.get_num_threads())]
    processes = arguments.processes or PROCESSES
    measured = measure_in_processes(CONTESTS, options, processes, folder_of(arguments.page))
    for path in write_page(arguments.page, measured):
        print(f'wrote {path}', file=sys.stderr)
    return 0


def paper_table(arguments: argparse.Namespace) -> int:
    """Measure the operators of a paper's table."""
    comparison = PAPER_TABLES[arguments.paper_table]
    sizes = comparison.sizes
    if arguments.sizes:
        sizes = tuple((side, side) for side in arguments.sizes)
    settings = _settings(arguments)
    total = len(sizes) * len(comparison.operators) * arguments.repetitions
    with tqdm(total=total, unit='turn', disable=None) as bar:
        rows = compare(comparison, arguments.repetitions, arguments.device, sizes, bar.update)
    print(comparison_text(comparison, rows, settings))
    _write_json(arguments.json, comparison_dict(comparison, rows, settings))
    if arguments.png:
        from ..visualization.benchmark_chart import draw_comparison

        draw_comparison(arguments.png, comparison, rows, machine_text(settings))
        print(f'wrote {arguments.png}', file=sys.stderr)
    return 0


def models(arguments: argparse.Namespace) -> int:
    """Measure the feature extraction of networks."""
    built, shape = {}, arguments.shape
    for path in arguments.model:
        model, config = load_model(path)
        if not hasattr(model, 'extract_feat'):
            raise ConfigError(f'the model of {path} has no extract_feat')
        name = Path(path).stem
        built[name if name not in built else str(path)] = model
        shape = shape or default_image_shape(config)[0]
    built = with_and_without(built)
    settings = _settings(
        arguments, shape=tuple(shape), batch=arguments.batch or 1, training=arguments.training
    )
    with tqdm(total=len(built) * arguments.repetitions, unit='turn', disable=None) as bar:
        rows = compare_models(
            built,
            tuple(shape),
            settings['batch'],
            arguments.repetitions,
            arguments.device,
            arguments.training,
            bar.update,
        )
    print(models_text(rows, settings))
    _write_json(arguments.json, models_dict(rows, settings))
    return 0


def _settings(arguments: argparse.Namespace, **more: Any) -> dict[str, Any]:
    return dict(
        machine(arguments.device),
        repetitions=arguments.repetitions,
        memory=arguments.memory or 'usual',
        **more,
    )


def _check_memory(device: str, size: tuple[int, ...], needed: int) -> None:
    """Refuse a map that the CPU's memory cannot hold; a system may promise it and stop later."""
    if torch.device(device).type != 'cpu' or 'SC_PHYS_PAGES' not in os.sysconf_names:
        return
    there = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    if needed > there:
        raise ConfigError(
            f'a map of {_name(size)} needs {needed / 1e9:,.1f} GB for input and output alone, the '
            f'machine has {there / 1e9:,.1f} GB; take a smaller one, or fewer --channels'
        )


def _turns(name: str, entry: Any, repetitions: int, device: str) -> dict[str, Any]:
    with tqdm(total=turns(entry) * repetitions, desc=name, unit='turn', disable=None) as bar:
        return run_contest(entry, repetitions, device, bar.update)


def _name(size: tuple[int, ...]) -> str:
    return 'x'.join(map(str, size))


def _write_json(path: Path | None, data: dict[str, Any]) -> None:
    if path is not None:
        write_text(path, json.dumps(data, indent=2) + '\n')
        print(f'wrote {path}', file=sys.stderr)
