"""Whole networks side by side: feature extraction with and without what a config puts in.

What is measured is ``extract_feat``, backbone and neck, which is where layers are inserted and
convolutions replaced; heads behind it depend on the picture and the weights. The networks take
turns, as operators do.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..cost.quantity import quantity
from ..cost.text import plain_table
from ..plugging import inserted_layers, replacements, unplug
from .measure import Time, peak_memory, time_interleaved
from .text import machine_text


@dataclass(frozen=True)
class NetworkRow:
    """One network of the table.

    Attributes:
        name: As in the table.
        parameters: Of the whole model.
        added: Inserted layers and replaced convolutions.
        time: Of one pass.
        ratio: Time of a pass against that of the first network, by the clock on the wall.
        cpu_ratio: The same by processor time; None on a GPU.
        peak: Most bytes in use at one time, beyond the input and the weights.
    """

    name: str
    parameters: int
    added: int
    time: Time
    ratio: float
    cpu_ratio: float | None
    peak: int


def with_and_without(models: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Put the first model without its insertions before the others, unless it has none.

    Args:
        models (Mapping[str, nn.Module]): Models by name.

    Returns:
        dict[str, nn.Module]: The models to compare, the plain one first.
    """
    name, first = next(iter(models.items()))
    if not inserted_layers(first) and not replacements(first):
        return dict(models)
    return {f'{name}, taken out': unplug(copy.deepcopy(first)), **models}


def compare_models(
    models: Mapping[str, nn.Module],
    shape: tuple[int, int],
    batch: int = 1,
    repetitions: int = 15,
    device: str = 'cpu',
    training: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> list[NetworkRow]:
    """Measure the feature extraction of several models in turns.

    Args:
        models (Mapping[str, nn.Module]): Detectors, segmenters or classifiers; the others are
            compared with the first.
        shape (tuple[int, int]): Height and width of the input, in pixels.
        batch (int): Images in the input. Defaults to 1.
        repetitions (int): Turns, of which the median is taken. Defaults to 15.
        device (str): ``'cpu'`` or a CUDA device. Defaults to ``'cpu'``.
        training (bool): Forward and backward pass in training mode instead of inference. Defaults
            to False.
        progress (Callable): Called after each turn of each model.

    Returns:
        list[NetworkRow]: In the order of ``models``.
    """
    x = torch.randn(batch, 3, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    functions = {}
    for name, model in models.items():
        model.to(device).train(training)
        functions[name] = _training_pass(model, x) if training else _inference_pass(model, x)
    peaks = {name: peak_memory(function, device) for name, function in functions.items()}
    times = time_interleaved(functions, repetitions, device=device, progress=progress)
    first = times[next(iter(models))]
    return [
        NetworkRow(
            name,
            sum(parameter.numel() for parameter in model.parameters()),
            len(inserted_layers(model)) + len(replacements(model)),
            times[name],
            times[name].wall / first.wall,
            None if first.cpu is None else times[name].cpu / first.cpu,
            peaks[name],
        )
        for name, model in models.items()
    ]


def models_text(rows: Sequence[NetworkRow], settings: dict[str, Any]) -> str:
    """Lay out measured networks."""
    header = [
        'network',
        'parameters',
        'added\nlayers',
        'time\nms',
        'CPU time\nms',
        'time\nratio',
        'CPU time\nratio',
        'peak\nbytes',
    ]
    body = [
        [
            row.name,
            quantity(row.parameters),
            str(row.added),
            f'{1000 * row.time.wall:.4g}',
            '-' if row.time.cpu is None else f'{1000 * row.time.cpu:.4g}',
            f'{row.ratio:.3f}',
            '-' if row.cpu_ratio is None else f'{row.cpu_ratio:.3f}',
            quantity(row.peak),
        ]
        for row in rows
    ]
    kind = 'forward and backward in training mode' if settings['training'] else 'inference'
    height, width = settings['shape']
    return '\n'.join(
        [
            f'Feature extraction (backbone and neck), {kind}, batch {settings["batch"]}, '
            f'{height} x {width}.',
            '',
            plain_table(header, body, left=1),
            '',
            f'time: median of {settings["repetitions"]} turns of each network, interleaved; ratio: '
            f'against {rows[0].name}',
            'peak bytes: the most in use at one time beyond input and weights, by the allocator',
            '',
            machine_text(settings),
        ]
    )


def models_dict(rows: Sequence[NetworkRow], settings: dict[str, Any]) -> dict[str, Any]:
    """Return measured networks as data for JSON; times in seconds, memory in bytes."""
    return dict(settings=settings, rows=[asdict(row) for row in rows])


def _inference_pass(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    def run() -> Any:
        with torch.inference_mode():
            return model.extract_feat(x)

    return run


def _training_pass(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    def run() -> None:
        model.zero_grad(set_to_none=True)
        sum(feature.square().mean() for feature in model.extract_feat(x)).backward()

    return run
