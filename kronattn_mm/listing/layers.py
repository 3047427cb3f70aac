"""Every layer that can be inserted, with its arguments as its constructor has them."""

import difflib
import importlib
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import layers

# What mmcv brings that takes `in_channels` and keeps the shape, and its convolutions with weights
# of the plain kind: name in the registry, module, class.
_MMCV = (
    ('NonLocal2d', 'mmcv.cnn.bricks', 'NonLocal2d'),
    ('ContextBlock', 'mmcv.cnn.bricks', 'ContextBlock'),
    ('GeneralizedAttention', 'mmcv.cnn.bricks', 'GeneralizedAttention'),
    ('CrissCrossAttention', 'mmcv.ops', 'CrissCrossAttention'),
    ('ConvAWS', 'mmcv.cnn.bricks', 'ConvAWS2d'),
)
# What `convs` takes from the convolution that is replaced.
_GEOMETRY = (
    'in_channels',
    'out_channels',
    'kernel_size',
    'stride',
    'padding',
    'dilation',
    'groups',
    'bias',
    'padding_mode',
)
REQUIRED = 'required'


@dataclass(frozen=True)
class Argument:
    """One argument of a constructor.

    Attributes:
        name: Its name.
        default: How its default is written in Python; ``'required'`` if it has none.
        kind: Its type hint; empty without one.
    """

    name: str
    default: str
    kind: str


@dataclass(frozen=True)
class LayerEntry:
    """One layer.

    Attributes:
        type: Its name for ``type=`` in a config.
        use: ``'insert'`` or ``'convs'``, the argument of ``Plugged`` that takes it.
        sentence: The first sentence of its docstring.
        arguments: What it takes, without what ``Plugged`` finds out by itself.
    """

    type: str
    use: str
    sentence: str
    arguments: tuple[Argument, ...]


def list_layers(names: Sequence[str] = ()) -> list[LayerEntry]:
    """List the layers of this package and mmcv's, or those of the given names.

    Args:
        names (Sequence[str]): Registered names of any library, with or without this package's
            scope. Defaults to none: all that are known to be of use.

    Raises:
        ImportError: If the library of a name cannot be imported.
        ValueError: If a name is registered nowhere; the message has the nearest that are.
    """
    known = [_entry(f'kronattn_mm.{name}', getattr(layers, name)) for name in layers.__all__]
    for name, module, cls in _MMCV:
        try:
            known.append(_entry(name, getattr(importlib.import_module(module), cls)))
        except (ImportError, AttributeError):  # without mmcv, or without its operators
            continue
    if not names:
        return sorted(known, key=lambda entry: entry.use == 'convs')
    by_name = {entry.type.rpartition('.')[2]: entry for entry in known}
    chosen = []
    for name in names:
        short = name.removeprefix('kronattn_mm.')
        if short in by_name:
            chosen.append(by_name[short])
        else:
            chosen.append(_entry(name, _registered(name, by_name)))
    return chosen


def _registered(name: str, known: dict[str, LayerEntry]) -> Any:
    from ..plugging.build import find_class

    try:
        return find_class(name, 'layer')
    except ValueError as error:
        near = difflib.get_close_matches(name.rpartition('.')[2], known, n=1)
        if not near:
            raise
        raise ValueError(
            f'layer {name!r} is not registered; did you mean {known[near[0]].type!r}?'
        ) from error


def _entry(name: str, cls: Any) -> LayerEntry:
    arguments = _arguments(cls)
    use = 'convs' if any(argument.name == 'kernel_size' for argument in arguments) else 'insert'
    found_out = _GEOMETRY if use == 'convs' else ('in_channels',)
    return LayerEntry(
        name,
        use,
        _first_sentence(inspect.getdoc(cls) or ''),
        tuple(item for item in arguments if item.name not in found_out),
    )


def _arguments(cls: Any) -> list[Argument]:
    """The arguments of a class; where it passes the rest on, those of what it derives from too."""
    found: dict[str, Argument] = {}
    for owner in inspect.getmro(cls) if inspect.isclass(cls) else [cls]:
        function = owner.__dict__.get('__init__') if inspect.isclass(owner) else owner
        if function is None:
            continue
        passes_on = False
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                passes_on = True
            elif parameter.name != 'self' and parameter.kind is not parameter.VAR_POSITIONAL:
                default = (
                    REQUIRED if parameter.default is parameter.empty else _python(parameter.default)
                )
                found.setdefault(
                    parameter.name, Argument(parameter.name, default, _kind(parameter.annotation))
                )
        if not passes_on:
            break
    return list(found.values())


def _python(value: Any) -> str:
    if isinstance(value, dict):
        return f'dict({", ".join(f"{key}={_python(item)}" for key, item in value.items())})'
    if isinstance(value, float):
        return repr(value) if len(repr(value)) < 9 else f'{value:.3g}'
    return repr(value)


def _kind(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ''
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return text.replace('typing.', '')


def _first_sentence(text: str) -> str:
    paragraph = ' '.join(text.strip().partition('\n\n')[0].split()).replace('``', '')
    match = re.match(r'.*?[.](?=\s|$)', paragraph)
    return match[0] if match else paragraph
