"""Find what was inserted into a model again: its state, and the shapes that it sees."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..cost.executed import executed_cost
from .convs import Replacement
from .insertion import Insertion, Insertions, norms
from .probe import evaluating
from .switch import all_on


def inserted_layers(model: nn.Module) -> dict[str, Insertion]:
    """Return the inserted layers of a model, or of a part of it.

    Args:
        model (nn.Module): A detector, segmenter, classifier, or any module in them.

    Returns:
        dict[str, Insertion]: The insertions by path of the plugged module and point, such as
        ``'backbone.res3'`` or ``'neck.fpn1'``, in the order of the model.
    """
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, Insertions):
            owner = path.rpartition('.')[0]
            for point, insertion in module.insertions.items():
                found[f'{owner}.{point}' if owner else point] = insertion
    return found


def replacements(model: nn.Module) -> dict[str, Replacement]:
    """Return every convolution that ``convs`` of ``Plugged`` replaced, by its path in ``model``."""
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, Insertions):
            owner = path.rpartition('.')[0]
            for name, replacement in module.replaced.items():
                found[f'{owner}.{name}' if owner else name] = replacement
    return found


def replaced_convs(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return path and config of every convolution that ``convs`` of ``Plugged`` replaced."""
    return {path: replacement.config for path, replacement in replacements(model).items()}


def switches(model: nn.Module) -> dict[str, Insertion | Replacement]:
    """Return everything that ``Plugged`` put into a model, by the names used everywhere."""
    return inserted_layers(model) | replacements(model)


@dataclass(frozen=True)
class AttentionStatus:
    """One inserted layer, or one replaced convolution, as it is now.

    Attributes:
        name: Path of the plugged module and point, such as ``'backbone.res3'``; the dotted path
            of a convolution.
        kind: ``'insert'`` or ``'conv'``.
        layer: Name of the class.
        channels: Channels of the map that it works on; of a convolution's output.
        shape: Shape ``(1, C, *spatial)`` of its input for one image; None where no image shape
            was given or the layer is not reached by the features of one (inside RoI heads).
        parameters: Number of parameters; of a convolution, those that the plain one lacks.
        macs: Multiply-accumulates as executed for that shape; of a convolution, those in addition
            to the plain one's. None where the shape is not known or an operator cannot be counted.
        share: ``parameters`` as a share of the parameters of ``model``.
        enabled: Whether it takes part in the forward pass.
        scale: What its contribution is multiplied by.
        trainable: ``'all'``, ``'some'`` (irregular) or ``'none'`` of ``parameters``.
        norms: How batch norms in it run now: ``'train'`` (statistics of the batch), ``'eval'``
            (running statistics), or ``'none'`` if there are none.
    """

    name: str
    kind: str
    layer: str
    channels: int | None
    shape: tuple[int, ...] | None
    parameters: int
    macs: int | None
    share: float
    enabled: bool
    scale: float
    trainable: str
    norms: str


def attention_status(
    model: nn.Module, image_shape: tuple[int, int] | None = None
) -> list[AttentionStatus]:
    """Say what was put into a model, layer by layer, and in which state it is.

    Args:
        model (nn.Module): A detector, segmenter or classifier, or any module in them.
        image_shape (tuple[int, int], optional): Height and width of an image after resizing, in
            pixels, for shapes and multiply-accumulates; the model must then be a whole one.

    Returns:
        list[AttentionStatus]: Inserted layers in the order of the model, then the convolutions.

    Raises:
        TypeError: If an image shape is given and the model cannot extract features.
        ValueError: If the image is too small for the model.
    """
    total = max(1, sum(parameter.numel() for parameter in model.parameters()))
    parts = switches(model)
    watched = {name: part.module for name, part in parts.items()}
    shapes = {} if image_shape is None else _seen_shapes(model, image_shape, watched)
    rows = []
    for name, part in parts.items():
        layer = watched[name]
        inserted = isinstance(part, Insertion)
        added = list(layer.parameters()) if inserted else list(part.added().values())
        parameters = sum(parameter.numel() for parameter in added)
        shape = shapes.get(name)
        rows.append(
            AttentionStatus(
                name=name,
                kind='insert' if inserted else 'conv',
                layer=type(layer).__name__,
                channels=part.config.get('in_channels' if inserted else 'out_channels'),
                shape=shape,
                parameters=parameters,
                macs=None if shape is None else _added_macs(part, shape),
                share=parameters / total,
                enabled=part.enabled,
                scale=part.scale,
                trainable=_some_of(parameter.requires_grad for parameter in added),
                norms=_norm_modes(part),
            )
        )
    return rows


def _some_of(flags: Iterable[bool]) -> str:
    found = set(flags)
    return 'none' if found <= {False} else 'all' if found == {True} else 'some'


def _norm_modes(part: Insertion | Replacement) -> str:
    # What the pre-hook of the plugged module will set them to, whatever a backbone did to them.
    if not norms(part.module):
        return 'none'
    # The attended convolutions have an argument of that name, which their branch remembers.
    held = part.norm_eval or any(
        getattr(child, 'norm_eval', False) for child in part.module.modules()
    )
    return 'train' if part.module.training and not held else 'eval'


def _added_macs(part: Insertion | Replacement, shape: tuple[int, ...]) -> int | None:
    with all_on([part]):
        if isinstance(part, Insertion):
            cost = executed_cost(part.layer, shape)
            return cost.macc if cost.complete else None
        cost = executed_cost(part.conv, shape)
        part.enabled = False
        return cost.macc - executed_cost(part.conv, shape).macc if cost.complete else None


def insertion_shapes(model: nn.Module, image_shape: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    """Return the shape that each inserted layer sees for one image.

    The features are computed on a copy of the model without data where its operators allow, so
    that a large image costs neither time nor memory.

    Args:
        model (nn.Module): A detector, segmenter or classifier of the OpenMMLab libraries.
        image_shape (tuple[int, int]): Height and width of the image after resizing, in pixels.

    Returns:
        dict[str, tuple[int, ...]]: ``(1, C, H, W)`` by the names of :func:`inserted_layers`. For
        layers that only a second stage reaches (inside RoI heads), the shape seen when built.

    Raises:
        TypeError: If the model cannot extract features.
        ValueError: If the image is too small for the model.
    """
    watched = {name: insertion.layer for name, insertion in inserted_layers(model).items()}
    seen = _seen_shapes(model, image_shape, watched)
    shapes = {
        name: seen.get(name, insertion.shape) for name, insertion in inserted_layers(model).items()
    }
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _seen_shapes(
    model: nn.Module, image_shape: tuple[int, int], watched: dict[str, nn.Module]
) -> dict[str, tuple[int, ...]]:
    if not hasattr(model, 'extract_feat'):
        raise TypeError(
            f'{type(model).__name__} has no extract_feat; give a whole detector, '
            'segmenter or classifier'
        )
    if not watched:
        return {}
    paths = {id(module): path for path, module in model.named_modules()}
    watched_paths = {name: paths[id(module)] for name, module in watched.items()}
    try:
        return _shapes_on(copy.deepcopy(model).to('meta'), image_shape, watched_paths)
    except (NotImplementedError, RuntimeError):
        # An operator without a meta kernel (mmcv's own, for example): compute for real.
        try:
            return _shapes_on(model, image_shape, watched_paths)
        except RuntimeError as error:
            raise ValueError(
                f'{type(model).__name__} cannot take an image of '
                f'{image_shape[0]} x {image_shape[1]}: {error}'
            ) from error


class _Input:
    """Writes down the shape of the first input of one layer."""

    def __init__(self, name: str, shapes: dict[str, tuple[int, ...]]) -> None:
        self.name = name
        self.shapes = shapes

    def record(self, module: nn.Module, args: tuple) -> None:
        if args and isinstance(args[0], Tensor):
            self.shapes[self.name] = tuple(args[0].shape)


def _shapes_on(
    model: nn.Module, image_shape: tuple[int, int], watched: dict[str, str]
) -> dict[str, tuple[int, ...]]:
    """Run the model and return the shapes that the modules at the paths ``watched`` see."""
    shapes: dict[str, tuple[int, ...]] = {}
    handles = [
        model.get_submodule(path).register_forward_pre_hook(_Input(name, shapes).record)
        for name, path in watched.items()
    ]
    parameter = next(model.parameters())
    image = torch.zeros(1, 3, *image_shape, device=parameter.device, dtype=parameter.dtype)
    try:
        with evaluating(model), all_on(switches(model).values()):
            features = model.extract_feat(image)
            for name in ('bbox_head', 'decode_head', 'auxiliary_head', 'head'):
                head = getattr(model, name, None)
                heads = head if isinstance(head, nn.ModuleList) else [head]
                for part in heads:
                    if part is not None and switches(part):
                        part(features)
    finally:
        for handle in handles:
            handle.remove()
    return shapes
