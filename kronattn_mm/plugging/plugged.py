"""``Plugged``: put layers into any module of any OpenMMLab library by config alone.

    backbone=dict(type='kronattn_mm.Plugged', base='mmdet.ResNet',
                  insert=[dict(at='res3-4', layer=dict(type='kronattn_mm.EfficientAttention2d'))])

It is a registered function and not a class for each backbone: it builds the base with the
remaining arguments, edits the built object in place and returns that same object, so that every
``isinstance``, every attribute and every key of a trained checkpoint stays what it was.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from mmengine.registry import MODELS as MMENGINE_MODELS
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..registry import MODELS
from . import one_image
from .build import build_layer, find_class
from .convs import replace_convs
from .fusing import check_fusing_order
from .insertion import Insertion, Insertions
from .points import Point, describe_points, resolve_points
from .probe import ProbeError, evaluating, output_shapes
from .removal import unplug

_INSERT_KEYS = ('at', 'layer', 'norm_eval', 'with_cp', 'enabled')
_CONVS_KEYS = ('at', 'layer', 'enabled')


@MODELS.register_module()
def Plugged(
    base: str,
    insert: Sequence[dict] = (),
    convs: Sequence[dict] = (),
    attention_weights: str | dict | None = None,
    **base_arguments: Any,
) -> nn.Module:
    """Build ``base`` and put layers into it.

    Args:
        base (str): Registered name of a backbone, neck or head, such as ``'mmdet.ResNet'``.
        insert (Sequence[dict]): Layers to insert, each a dict with

            - ``at`` (str): points, such as ``'res3-4'``; see :mod:`.points`;
            - ``layer`` (dict): config of any layer that takes ``in_channels`` and keeps the shape
              of its input. ``in_channels`` is found out and need not be given;
            - ``norm_eval`` (bool): keep batch norms inside the layer in eval mode. Defaults to
              False, whatever the backbone's own ``norm_eval`` says;
            - ``with_cp`` (bool): recompute the layer in the backward pass; a batch norm in it then
              updates its statistics twice a step. Defaults to False;
            - ``enabled`` (bool): False builds the layer, so that its keys load, and leaves it
              out of the computation. Defaults to True.
        convs (Sequence[dict]): Convolutions to replace, each a dict with ``at`` (patterns of
            dotted paths), ``layer`` (config of a registered convolution, without geometry) and
            ``enabled`` (bool): False computes the plain convolution. Defaults to True.
        attention_weights (str or dict, optional): Small file to load the inserted layers from;
            see :mod:`.small_file`. Without ``insert`` and ``convs`` the file says what goes where.
            A dict with ``file`` and ``part`` says which module of the file's model this is, where
            several are alike.
        **base_arguments: Arguments of ``base``, which checks them.

    Returns:
        nn.Module: The built base, the same object that its own class made. Inserted layers are
        its child ``attention``; everything else keeps its name.

    Raises:
        ImportError: If the library of ``base`` cannot be imported.
        TypeError: If an entry has the wrong type or a layer gets an argument it does not take.
        ValueError: If a point, a layer or a key is unknown, a point is taken twice or would be
            lost when norms are converted or fused, or a layer changes the shape of its input.
    """
    insert = _entries('insert', insert, _INSERT_KEYS)
    convs = _entries('convs', convs, _CONVS_KEYS)
    module = _plug(_build_base(base, base_arguments), insert, convs, base_arguments)
    if attention_weights is not None:
        from .small_file import load_into_part  # it needs what is here

        load_into_part(module, attention_weights)
    return module


def plug(module: nn.Module, insert: Sequence[dict] = (), convs: Sequence[dict] = ()) -> nn.Module:
    """Put layers into a module that is built already, in place.

    Args:
        module (nn.Module): A backbone, neck or head.
        insert (Sequence[dict]): Layers to insert; see :func:`Plugged`.
        convs (Sequence[dict]): Convolutions to replace; see :func:`Plugged`.

    Returns:
        nn.Module: ``module``.

    Raises:
        TypeError: As :func:`Plugged`.
        ValueError: As :func:`Plugged`, or if something is plugged into ``module`` already.
    """
    return _plug(
        module, _entries('insert', insert, _INSERT_KEYS), _entries('convs', convs, _CONVS_KEYS), {}
    )


def plug_at(
    module: nn.Module, insert: Sequence[tuple[Point, dict]], convs: Sequence[dict]
) -> nn.Module:
    """Put layers at places that are known, without running ``module`` to find anything out.

    Args:
        module (nn.Module): A backbone, neck or head.
        insert (Sequence[tuple]): Point and entry of each layer; the entry's ``layer`` holds
            ``in_channels`` unless its class takes none, and ``shape`` may be the shape of a small
            input to try the layer out with.
        convs (Sequence[dict]): Convolutions to replace; see :func:`Plugged`.

    Returns:
        nn.Module: ``module``.

    Raises:
        ValueError: If a place is not there, is taken twice or would be lost when norms are
            converted or fused; or a layer changes the shape of its input.
    """
    with _plugging(module) as container:
        _replace(module, container, convs)
        paths = {path for path, _ in module.named_modules()}
        for point, _ in insert:
            if point.path not in paths:
                raise ValueError(
                    f'{type(module).__name__} has no module {point.path!r} to insert '
                    f'{point.name!r} at'
                )
        _check_taken(insert)
        for point, entry in insert:
            check_survives(module, point)
            _add(module, container, point, entry, entry.get('shape'))
    return module


def _plug(
    module: nn.Module, insert: Sequence[dict], convs: Sequence[dict], arguments: dict[str, Any]
) -> nn.Module:
    if not insert and not convs:
        return module
    with _plugging(module) as container:
        _replace(module, container, convs)
        _insert_layers(module, container, insert, arguments)
    return module


@contextlib.contextmanager
def _plugging(module: nn.Module) -> Iterator[Insertions]:
    """Give ``module`` a container; if it cannot be filled, leave the module as it was."""
    if isinstance(getattr(module, 'attention', None), Insertions):
        raise ValueError(
            f'layers were inserted into this {type(module).__name__} before; unplug '
            'it first, and insert all of them at once'
        )
    if hasattr(module, 'attention'):
        raise ValueError(
            f'{type(module).__name__} has an attribute `attention` of its own, so '
            'layers cannot be inserted under that name'
        )
    if isinstance(module, nn.Sequential):
        raise ValueError(
            f'a {type(module).__name__} calls every child it has, so nothing can be '
            'kept in it; plug the module that holds it'
        )
    container = Insertions()
    module.attention = container
    try:
        yield container
    except Exception:
        unplug(module)
        raise
    container.train(module.training)
    container.guard_init_weights(module)
    if container.has_norms():
        module.register_forward_pre_hook(container.set_norm_modes)


def _replace(module: nn.Module, container: Insertions, convs: Sequence[dict]) -> None:
    for entry in convs:
        replace_convs(
            module, entry['at'], entry['layer'], container.replaced, entry.get('enabled', True)
        )
    # After all entries: a neighbour may be replaced by another one.
    for path in container.replaced:
        parent, _, name = path.rpartition('.')
        check_fusing_order(module.get_submodule(parent), name)
    one_image.arrange(module, container.replaced)


def _entries(argument: str, entries: Sequence[dict], keys: Sequence[str]) -> Sequence[dict]:
    if isinstance(entries, (dict, str)) or not isinstance(entries, Sequence):
        raise TypeError(f'`{argument}` must be a list of dicts, got {entries!r}')
    for entry in entries:
        if not isinstance(entry, dict):
            raise TypeError(f'`{argument}` must be a list of dicts, got the entry {entry!r}')
        unknown = [key for key in entry if key not in keys]
        if unknown:
            raise ValueError(
                f'unknown key {unknown[0]!r} in `{argument}`: {entry!r}; '
                f'the keys are {", ".join(keys)}'
            )
        missing = [key for key in ('at', 'layer') if key not in entry]
        if missing:
            raise ValueError(f'an entry of `{argument}` has no {missing[0]!r}: {entry!r}')
        if not isinstance(entry['layer'], dict):
            raise TypeError(f'`layer` must be a dict with a type, got {entry["layer"]!r}')
        for key in ('norm_eval', 'with_cp', 'enabled'):
            if not isinstance(entry.get(key, False), bool):
                raise TypeError(f'`{key}` must be True or False, got {entry[key]!r}')
    return entries


def _build_base(base: str, arguments: dict[str, Any]) -> nn.Module:
    find_class(base, 'base')
    module = MMENGINE_MODELS.build(dict(type=base, **arguments))
    if not isinstance(module, nn.Module):
        raise TypeError(f'base {base!r} built a {type(module).__name__}, not a module')
    return module


def _insert_layers(
    module: nn.Module, container: Insertions, insert: Sequence[dict], arguments: dict[str, Any]
) -> None:
    channels = arguments.get('in_channels', getattr(module, 'in_channels', None))
    levels = len(channels) if isinstance(channels, (tuple, list)) else None
    planned: list[tuple[Point, dict]] = []
    for entry in insert:
        planned += [(point, entry) for point in resolve_points(module, entry['at'], levels)]
    _check_taken(planned)
    for point, _ in planned:
        check_survives(module, point)
    paths = sorted({point.path for point, _ in planned})
    if not paths:
        return
    try:
        shapes = output_shapes(module, paths, arguments)
    except ProbeError as error:
        if any('in_channels' not in entry['layer'] for _, entry in planned):
            raise ValueError(
                f'the channels at {planned[0][0].name!r} could not be found out '
                f'({error}); give in_channels in the layer'
            ) from error
        shapes = None
    second = None
    if shapes is not None:
        with contextlib.suppress(ProbeError):
            second = output_shapes(module, paths, arguments, skip_sizes=1)
    for point, entry in planned:
        shape = None
        if shapes is not None:
            shape = _shape_at(module, point, shapes, levels)
            _check_channels_first(module, point, shape, second)
        _add(module, container, point, entry, shape)


def _add(
    module: nn.Module,
    container: Insertions,
    point: Point,
    entry: dict,
    shape: tuple[int, ...] | None,
) -> None:
    config = dict(entry['layer'])
    if shape is not None:
        config.setdefault('in_channels', shape[1])
    layer = _build_and_try(config, point, shape, module)
    container.add(
        module,
        point,
        Insertion(
            point,
            layer,
            config,
            shape,
            entry.get('norm_eval', False),
            entry.get('with_cp', False),
            entry.get('enabled', True),
            entry['at'],
        ),
    )


def _check_taken(planned: Sequence[tuple[Point, dict]]) -> None:
    places: dict[tuple, str] = {}
    keys: set[str] = set()
    for point, _ in planned:
        place = (point.path, point.index)
        if place in places:
            raise ValueError(
                f'the point {point.name!r} is taken already (by {places[place]!r}); '
                'one layer goes to one point'
            )
        if point.key in keys or hasattr(Insertions, point.key):
            raise ValueError(
                f'the point {point.name!r} cannot have the name '
                f'`attention.{point.key}`, which is taken'
            )
        places[place] = point.name
        keys.add(point.key)


def check_survives(module: nn.Module, point: Point) -> None:
    """Refuse a point whose hook other tools would lose.

    Conversion to and from SyncBN makes every batch norm anew, and fusing makes a convolution and
    the batch norm that is registered next after it into one: a hook on the norm, on the
    convolution or on something between them would be gone, or would see other values.
    """
    if not point.path:
        return
    parent_path, _, name = point.path.rpartition('.')
    target = module.get_submodule(point.path)
    enclosing = (
        f'insert at {parent_path!r} instead'
        if parent_path
        else 'insert at a module that holds both'
    )
    if isinstance(target, _BatchNorm):
        raise ValueError(
            f'{point.name!r} is a batch norm: SyncBN conversion and fusing replace '
            f'it and would lose the layer; {enclosing}'
        )
    waiting = None
    reached = False
    for child_name, child in module.get_submodule(parent_path).named_children():
        if isinstance(child, _BatchNorm):
            if reached and waiting is not None:
                raise ValueError(
                    f'{point.name!r} lies between the convolution {waiting!r} and '
                    f'its batch norm {child_name!r}: fusing the two would lose the '
                    f'layer or give wrong results; {enclosing}'
                )
            waiting = None
        elif isinstance(child, nn.Conv2d):
            if reached:
                return
            waiting = child_name
        reached = reached or child_name == name


def _shape_at(module: nn.Module, point: Point, shapes: dict, levels: int | None) -> tuple[int, ...]:
    kind = type(module).__name__
    if point.path not in shapes:
        raise ValueError(
            f'the module {point.name!r} of {kind} is not called in its forward pass, '
            'so a layer there would never run'
        )
    shape = shapes[point.path]
    if point.index is not None:
        if isinstance(shape, tuple):
            shape = [shape]
            if point.index == 0:
                raise ValueError(
                    f'{kind} returns one tensor, so there is no output to choose; '
                    f'{describe_points(module, None)}'
                )
        if point.index >= len(shape):
            first = 1 if point.name.startswith('fpn') else 0
            word = point.name.rstrip('0123456789')
            raise ValueError(
                f'{kind} returns {len(shape)} outputs, there is no {point.name!r}; '
                f'there are {word}{first} to {word}{first + len(shape) - 1}'
            )
        shape = shape[point.index]
    if not isinstance(shape, tuple) or len(shape) < 3:
        outputs = 'several outputs' if isinstance(shape, list) else 'no feature map'
        raise ValueError(
            f'{point.name!r} of {kind} gives {outputs}, not one map of shape '
            f'(N, C, ...); choose a module that returns one tensor, or out<i>'
        )
    return shape


def _check_channels_first(
    module: nn.Module, point: Point, shape: tuple[int, ...], second: dict | None
) -> None:
    """Tell (N, C, ...) from (N, tokens, C), (N, H, W, C) and windows in the place of images.

    Only a second size of input can do the first: channels do not change with it.
    """
    if shape[0] != 1:
        raise ValueError(
            f'{point.name!r} gives {shape[0]} maps for one image, {shape}: its first '
            'axis is not that of the images; choose another module, or out<i>'
        )
    if second is None:
        if len(shape) == 3:
            raise ValueError(
                f'whether {point.name!r}, which gives {shape}, has channels before '
                'tokens cannot be found out; choose out<i> where the module returns '
                'feature maps'
            )
        return
    again = _shape_at(module, point, second, None)
    if again[1] != shape[1]:
        kind = 'tokens' if len(shape) == 3 else 'rows'
        raise ValueError(
            f'{point.name!r} gives {kind} before channels, {shape}, and layers take '
            'channels first; choose out<i> where the module returns feature maps'
        )


def _build_and_try(
    config: dict[str, Any], point: Point, shape: tuple[int, ...] | None, module: nn.Module
) -> nn.Module:
    layer = build_layer(config)
    if not isinstance(layer, nn.Module):
        raise TypeError(f'the layer at {point.name!r} is a {type(layer).__name__}, not a module')
    parameter = next(module.parameters(), None)
    if parameter is not None:
        layer = layer.to(device=parameter.device, dtype=parameter.dtype)
    if shape is None:
        return layer
    like = dict(device=parameter.device, dtype=parameter.dtype) if parameter is not None else {}
    name = type(layer).__name__
    with evaluating(layer):
        try:
            output = layer(torch.zeros(shape, **like))
        except Exception as error:
            raise ValueError(
                f'{name} cannot run at {point.name!r}, where maps have the shape {shape}: {error}'
            ) from error
    got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if got != shape:
        raise ValueError(
            f'{name} at {point.name!r} must keep the shape of its input {shape}, but returns {got}'
        )
    return layer
