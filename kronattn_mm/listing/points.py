"""Every place of a model where ``Plugged`` can put a layer, found by running the model once.

The modules of backbone, neck and heads are watched while one image goes through, twice and with
two sizes: where the second axis of an output changes with the image, it is not that of channels.
"""

import contextlib
import copy
import fnmatch
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..cost.config import quiet
from ..layers.hooks import has_hooks
from ..plugging.insertion import Insertions
from ..plugging.plugged import check_survives
from ..plugging.points import Point, residual_stages, split_points
from ..plugging.probe import ProbeError, evaluating, output_shapes

_DENSE_HEADS = ('rpn_head', 'bbox_head', 'mask_head', 'decode_head', 'auxiliary_head', 'head')
_LAYER = "dict(type='kronattn_mm.EfficientAttention{axes}d')"


@dataclass(frozen=True)
class PointEntry:
    """One place, or several alike that one word names.

    Attributes:
        at: The word for ``at`` of ``insert``.
        layer: Class of the module whose output it is; empty for an output of the part itself.
        shape: Shape ``(1, C, *spatial)`` of the map there; the first one, if there are several
            calls. Of a module that runs on regions: for one region.
        stride: Image size over map size, such as ``(8, 8)``; None where regions are looked at.
        places: How many places the word names.
        calls: How often each is run for one image; the same layer then works on each result.
        taken: Class of the layer that is inserted there already, else empty.
    """

    at: str
    layer: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    places: int = 1
    calls: int = 1
    taken: str = ''

    @property
    def channels(self) -> int:
        """Channels of the map."""
        return self.shape[1]


@dataclass(frozen=True)
class ConvGroup:
    """Convolutions that one pattern for ``at`` of ``convs`` names.

    Attributes:
        at: The pattern.
        number: How many they are.
        kernels: Their kernel sizes.
        in_channels: Smallest and largest number of input channels.
        out_channels: Smallest and largest number of output channels.
        depthwise: Whether they are depthwise, each with as many groups as channels.
    """

    at: str
    number: int
    kernels: tuple[tuple[int, ...], ...]
    in_channels: tuple[int, int]
    out_channels: tuple[int, int]
    depthwise: bool


@dataclass
class PartPoints:
    """The points of one part of a model.

    Attributes:
        part: Path of the part in the model, and of its dict in the config: ``'backbone'``.
        base: What it is, for ``base=`` of ``Plugged``, such as ``'mmdet.ResNet'``.
        words: The places that have short names.
        paths: The places that are named by dotted paths.
        convs: The convolutions that ``convs`` can replace.
        paste: A line for the config.
        problem: Why there are no places, if there are none.
    """

    part: str
    base: str
    words: list[PointEntry] = field(default_factory=list)
    paths: list[PointEntry] = field(default_factory=list)
    convs: list[ConvGroup] = field(default_factory=list)
    paste: str = ''
    problem: str = ''


def list_points(
    model: nn.Module, config: dict[str, Any], image_shape: tuple[int, int]
) -> list[PartPoints]:
    """List the insertion points of every part of a model.

    Args:
        model (nn.Module): A whole detector, segmenter or classifier.
        config (dict): The whole config that it was built from, for the names of the parts.
        image_shape (tuple[int, int]): Height and width of the image after resizing, in pixels.

    Raises:
        TypeError: If the model cannot extract features.
        ValueError: If the image is too small for the model.
    """
    if not hasattr(model, 'extract_feat'):
        raise TypeError(
            f'{type(model).__name__} has no extract_feat; give a whole detector, '
            'segmenter or classifier'
        )
    # The smaller of the two must be large enough for several windows of attention.
    half = min(image_shape) >= 512
    other = tuple(side // 64 * 32 if half else 2 * side for side in image_shape)
    seen = _run(model, image_shape)
    second = _run(model, other, needed=False)
    with quiet():
        return [
            _part_points(
                model, path, arguments, config.get('default_scope'), seen, second, image_shape
            )
            for path, arguments in _parts(model, config['model'])
        ]


# ---------------------------------------------------------------- running the model


@dataclass
class _Output:
    """What one module returned: the shapes of the first call, and how many calls there were."""

    shapes: list[tuple[int, ...] | None]
    single: bool
    calls: int = 1
    widths: set[int] = field(default_factory=set)


class _Watcher:
    """Forward hooks that write down what every module of a model returns."""

    def __init__(self) -> None:
        self.seen: dict[str, _Output] = {}

    def hook(self, path: str) -> Any:
        def record(module: nn.Module, args: tuple, output: Any) -> None:
            single = isinstance(output, Tensor)
            items = [output] if single else output
            if not isinstance(items, (tuple, list)):
                return
            shapes = [tuple(item.shape) if isinstance(item, Tensor) else None for item in items]
            before = self.seen.get(path)
            if before is None:
                before = self.seen[path] = _Output(shapes, single)
            else:
                before.calls += 1
            if single and len(shapes[0]) > 1:
                before.widths.add(shapes[0][1])

        return record


def _run(model: nn.Module, image_shape: tuple[int, int], needed: bool = True) -> dict[str, _Output]:
    """Run backbone, neck and dense heads on one image without data, or with it where that fails.

    Returns:
        dict[str, _Output]: By path; empty if it fails and is not needed.
    """
    with contextlib.suppress(Exception):  # an operator may have no kernel for tensors without data
        return _run_on(copy.deepcopy(model).to('meta'), image_shape, all_heads=True)
    try:
        return _run_on(model, image_shape, all_heads=False)
    except Exception as error:  # foreign code may raise anything
        if not needed:
            return {}
        raise ValueError(
            f'{type(model).__name__} cannot take an image of {image_shape[0]} x '
            f'{image_shape[1]}: {" ".join(str(error).split())}'
        ) from error


def _run_on(model: nn.Module, image_shape: tuple[int, int], all_heads: bool) -> dict[str, _Output]:
    watcher = _Watcher()
    handles = [
        module.register_forward_hook(watcher.hook(path))
        for path, module in model.named_modules()
        if path
    ]
    parameter = next(model.parameters())
    image = torch.zeros(1, 3, *image_shape, device=parameter.device, dtype=parameter.dtype)
    try:
        with quiet(), evaluating(model):
            features = model.extract_feat(image)
            for name in _DENSE_HEADS:
                head = getattr(model, name, None)
                for part in head if isinstance(head, nn.ModuleList) else [head]:
                    if part is None:
                        continue
                    try:
                        part(features)
                    except Exception as error:
                        # A head of queries wants more than features: it is then run by itself.
                        if all_heads and isinstance(error, (NotImplementedError, RuntimeError)):
                            raise
    finally:
        for handle in handles:
            handle.remove()
    return watcher.seen


# ---------------------------------------------------------------- parts and their points


def _parts(model: nn.Module, config: Any, path: str = '') -> Iterator[tuple[str, dict]]:
    """Yield path and config of what the config builds: backbone, neck and heads."""
    entries = config.items() if isinstance(config, dict) else enumerate(config)
    for key, value in entries:
        if not isinstance(value, (dict, list, tuple)) or key == 'data_preprocessor':
            continue
        child = f'{path}.{key}' if path else str(key)
        try:
            module = model.get_submodule(child)
        except AttributeError:
            continue
        if isinstance(value, dict) and 'type' in value:
            inner = [found for found, _ in _parts(model, value, child)]
            if any(True for _ in module.parameters()) and not inner:
                yield child, value
        yield from _parts(model, value, child)


def _part_points(
    model: nn.Module,
    path: str,
    arguments: dict,
    scope: str | None,
    seen: dict[str, _Output],
    second: dict[str, _Output],
    image_shape: tuple[int, int],
) -> PartPoints:
    module = model.get_submodule(path)
    kind = arguments['type']
    plugged = isinstance(kind, str) and kind.rpartition('.')[2] == 'Plugged'
    base = str(arguments['base'] if plugged else kind if isinstance(kind, str) else kind.__name__)
    if '.' not in base and scope is not None:
        base = f'{scope}.{base}'
    result = PartPoints(path, base, convs=_conv_groups(module))
    own = {
        name[len(path) + 1 :]: output
        for name, output in seen.items()
        if name.startswith(path + '.')
    }
    again = {
        name[len(path) + 1 :]: output
        for name, output in second.items()
        if name.startswith(path + '.')
    } or None
    strided = True
    if path in seen:
        own[''] = seen[path]
    else:
        try:
            own, again = _probe(module, arguments)
        except ProbeError as error:
            result.problem = f'its features cannot be computed by themselves ({error})'
            return result
        strided = False
    image = image_shape if strided else None
    taken = {
        (item.path, item.index): type(item.layer).__name__ for item in _insertions(module).values()
    }
    result.words = list(_words(module, arguments, own, image, taken))
    result.paths = _grouped(
        [
            _entry(name, type(child).__name__, own[name], image, taken.get((name, None), ''))
            for name, child in module.named_modules()
            if _is_place(module, name, child, own, again)
        ],
        [name for name, _ in module.named_modules() if name],
    )
    if not result.words and not result.paths:
        result.problem = 'nothing in it returns one feature map'
    result.paste = _paste(result)
    return result


def _probe(
    module: nn.Module, arguments: dict
) -> tuple[dict[str, _Output], dict[str, _Output] | None]:
    """Run a part by itself, as ``Plugged`` does: heads of a second stage work on regions."""
    paths = [path for path, _ in module.named_modules()]
    runs = []
    for skip in (0, 1):
        try:
            shapes = output_shapes(module, paths, arguments, skip_sizes=skip)
        except ProbeError:
            if skip:
                return runs[0], None
            raise
        except ValueError as error:
            raise ProbeError(str(error)) from error
        runs.append(
            {
                path: _Output([shape], True, widths={shape[1]} if len(shape) > 1 else set())
                if isinstance(shape, tuple)
                else _Output(shape, False)
                for path, shape in shapes.items()
            }
        )
    return runs[0], runs[1]


def _insertions(module: nn.Module) -> dict[str, Any]:
    container = getattr(module, 'attention', None)
    return container.insertions if isinstance(container, Insertions) else {}


def _words(
    module: nn.Module,
    arguments: dict,
    own: dict[str, _Output],
    image: tuple[int, int] | None,
    taken: dict,
) -> Iterator[PointEntry]:
    for number, path in enumerate(residual_stages(module), 1):
        if path in own and own[path].single:
            yield _entry(
                f'res{number}',
                type(module.get_submodule(path)).__name__,
                own[path],
                image,
                taken.get((path, None), ''),
            )
    outputs = own.get('')
    if outputs is None or outputs.single:
        return
    channels = arguments.get('in_channels', getattr(module, 'in_channels', None))
    is_neck = isinstance(channels, (tuple, list))
    for index, shape in enumerate(outputs.shapes):
        if shape is None or len(shape) < 3 or shape[0] != 1:
            continue
        word = f'fpn{index + 1}' if is_neck else f'out{index}'
        yield PointEntry(
            word, '', shape, _stride(shape, image), 1, outputs.calls, taken.get(('', index), '')
        )


def _is_place(
    module: nn.Module,
    path: str,
    child: nn.Module,
    own: dict[str, _Output],
    again: dict[str, _Output] | None,
) -> bool:
    """Whether ``Plugged`` takes this path: one map of one width with channels first, kept."""
    output = own.get(path)
    if not path or _is_ours(module, path) or output is None or not output.single:
        return False
    shape = output.shapes[0]
    if len(shape) < 3 or shape[0] != 1 or len(output.widths) != 1 or 0 in shape:
        return False
    if again is None:
        if len(shape) == 3:  # channels or tokens first? Only a second size can tell
            return False
    elif path not in again or again[path].shapes[0][:2] != shape[:2]:
        return False
    try:
        check_survives(module, Point(path, path))
    except ValueError:
        return False
    return True


def _is_ours(module: nn.Module, path: str) -> bool:
    """Whether the path lies in an inserted layer or in the new part of a replaced convolution."""
    container = getattr(module, 'attention', None)
    if not isinstance(container, Insertions):
        return False
    inside = [f'{conv}.attention' for conv in container.replaced] + ['attention']
    return any(path == name or path.startswith(f'{name}.') for name in inside)


def _entry(
    at: str, layer: str, output: _Output, image: tuple[int, int] | None, taken: str
) -> PointEntry:
    shape = output.shapes[0]
    return PointEntry(at, layer, shape, _stride(shape, image), 1, output.calls, taken)


def _stride(shape: Sequence[int], image: tuple[int, int] | None) -> tuple[int, ...] | None:
    if image is None or len(shape) != 4 or 0 in shape:
        return None
    return tuple(map(_ratio, image, shape[2:]))


def _ratio(side: int, own: int) -> int:
    """The stride that made ``own`` of ``side`` by rounding up or down at each halving."""
    ratio = side / own
    power = 2 ** round(math.log2(ratio))
    # An odd side is rounded at each step, so that 800 / 13 is a stride of 64.
    return power if side // power <= own <= -(-side // power) else max(1, round(ratio))


def _grouped(entries: list[PointEntry], paths: list[str]) -> list[PointEntry]:
    """Put places of one kind together where a pattern names them and nothing else."""
    groups: dict[tuple, list[PointEntry]] = {}
    for entry in entries:
        key = (
            _starred(entry.at),
            entry.layer,
            entry.shape,
            entry.calls,
            entry.taken,
            entry.at.partition('.')[0],
        )
        groups.setdefault(key, []).append(entry)
    result = []
    for group in groups.values():
        names = [entry.at for entry in group]
        word = _word_for(names, paths)
        if word is None:
            result += group
        else:
            first = group[0]
            result.append(
                PointEntry(
                    word,
                    first.layer,
                    first.shape,
                    first.stride,
                    len(group),
                    first.calls,
                    first.taken,
                )
            )
    return result


def _word_for(names: list[str], paths: list[str]) -> str | None:
    """Return a word of ``at`` that names exactly these paths, None if there is no short one."""
    if len(names) == 1:
        return names[0]
    stems = {name.rstrip('0123456789') for name in names}
    numbers = [name[len(name.rstrip('0123456789')) :] for name in names]
    if len(stems) == 1 and all(numbers):
        stem, values = stems.pop(), [int(number) for number in numbers]
        if values == list(range(values[0], values[0] + len(values))):
            return f'{stem}{values[0]}-{values[-1]}'
    first, rest = names[0].split('.'), [name.split('.') for name in names[1:]]
    pattern = '.'.join(
        part if all(other[place] == part for other in rest) else '*'
        for place, part in enumerate(first)
    )
    found = [
        path
        for path in paths
        if path.count('.') == pattern.count('.') and fnmatch.fnmatchcase(path, pattern)
    ]
    return pattern if found == names else None


def _starred(path: str) -> str:
    return re.sub(r'\d+', '*', path)


def _conv_groups(module: nn.Module) -> list[ConvGroup]:
    """Convolutions that can be replaced, by patterns in which ``*`` may stand for dots too."""
    every = {
        path: child
        for path, child in module.named_modules()
        if isinstance(child, _ConvNd) and not isinstance(child, _ConvTransposeNd)
    }
    convs = {
        path: conv
        for path, conv in every.items()
        if 'attention' not in path.split('.')
        and not set(conv.state_dict()) - {'weight', 'bias'}
        and not has_hooks(conv)
    }
    groups: dict[str, list[str]] = {}
    for path in convs:
        groups.setdefault(_starred(path), []).append(path)
    result = []
    for pattern, paths in groups.items():
        named = [
            path
            for path in every
            if fnmatch.fnmatchcase(path, pattern) or path.startswith(pattern + '.')
        ]
        for word, members in (
            [(pattern, paths)]
            if named == paths and len(paths) > 1
            else [(path, [path]) for path in paths]
        ):
            chosen = [convs[path] for path in members]
            result.append(
                ConvGroup(
                    word,
                    len(chosen),
                    tuple(sorted({conv.kernel_size for conv in chosen})),
                    _range(conv.in_channels for conv in chosen),
                    _range(conv.out_channels for conv in chosen),
                    all(conv.groups == conv.in_channels > 1 for conv in chosen),
                )
            )
    return result


def _range(numbers: Iterator[int]) -> tuple[int, int]:
    numbers = list(numbers)
    return min(numbers), max(numbers)


def _paste(part: PartPoints) -> str:
    """A line that puts a layer at the usual places: stages 3 and 4, all outputs, else any."""
    words = [entry.at for entry in part.words]
    place = part.words[-1] if words else None
    stages = [word for word in words if word.startswith('res')]
    if 'res4' in stages:
        at = 'res3-4'
    elif len(words) > len(stages) + 1:
        outputs = words[len(stages) :]
        first, last = outputs[0], outputs[-1]
        at = (
            f'{first}-{last[3:]}'
            if outputs
            == [f'{first[:3]}{number}' for number in range(int(first[3:]), int(last[3:]) + 1)]
            else '+'.join(outputs)
        )
    elif words:
        at = words[-1]
    elif part.paths:
        # The last block of the largest maps, not an output layer.
        blocks = [entry for entry in part.paths if entry.layer == 'ConvModule'] or part.paths
        size = max((math.prod(entry.shape[2:]), entry.channels) for entry in blocks)
        place = [entry for entry in blocks if (math.prod(entry.shape[2:]), entry.channels) == size][
            -1
        ]
        at = split_points(place.at)[-1]
    else:
        return ''
    name = part.part.rpartition('.')[2]
    own = f'{name}=' if not name.isdigit() else ''
    axes = len(place.shape) - 2  # volumes of stereo have three
    return (
        f"{own}dict(type='kronattn_mm.Plugged', base={part.base!r},\n"
        f'    insert=[dict(at={at!r},\n                 layer={_LAYER.format(axes=axes)})])'
    )
