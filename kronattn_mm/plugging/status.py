"""Find the inserted layers of a model again, and the shapes that they see."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from .insertion import Insertion, Insertions
from .probe import evaluating


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


def replaced_convs(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return path and config of every convolution that ``convs`` of ``Plugged`` replaced."""
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, Insertions):
            owner = path.rpartition('.')[0]
            for name, config in module.replaced.items():
                found[f'{owner}.{name}' if owner else name] = config
    return found


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
    if not hasattr(model, 'extract_feat'):
        raise TypeError(f'{type(model).__name__} has no extract_feat; give a whole detector, '
                        'segmenter or classifier')
    try:
        seen = _shapes_on(copy.deepcopy(model).to('meta'), image_shape)
    except (NotImplementedError, RuntimeError):
        # An operator without a meta kernel (mmcv's own, for example): compute for real.
        try:
            seen = _shapes_on(model, image_shape)
        except RuntimeError as error:
            raise ValueError(f'{type(model).__name__} cannot take an image of '
                             f'{image_shape[0]} x {image_shape[1]}: {error}') from error
    shapes = {name: seen.get(name, insertion.shape)
              for name, insertion in inserted_layers(model).items()}
    return {name: shape for name, shape in shapes.items() if shape is not None}


class _Input:
    """Writes down the shape of the first input of one layer."""

    def __init__(self, name: str, shapes: dict[str, tuple[int, ...]]) -> None:
        self.name = name
        self.shapes = shapes

    def record(self, module: nn.Module, args: tuple) -> None:
        if args and isinstance(args[0], Tensor):
            self.shapes[self.name] = tuple(args[0].shape)


def _shapes_on(model: nn.Module, image_shape: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    handles = [insertion.layer.register_forward_pre_hook(_Input(name, shapes).record)
               for name, insertion in inserted_layers(model).items()]
    parameter = next(model.parameters())
    image = torch.zeros(1, 3, *image_shape, device=parameter.device, dtype=parameter.dtype)
    try:
        with evaluating(model):
            features = model.extract_feat(image)
            for name in ('bbox_head', 'decode_head', 'auxiliary_head', 'head'):
                head = getattr(model, name, None)
                heads = head if isinstance(head, nn.ModuleList) else [head]
                for part in heads:
                    if part is not None and inserted_layers(part):
                        part(features)
    finally:
        for handle in handles:
            handle.remove()
    return shapes
