"""Switch what was inserted off and on, or make it weaker, for as long as a ``with`` lasts.

    with attention_disabled(model, 'res3+fpn1-5'):
        ...                                  # the model without those layers
    with attention_scaled(model, 0.5):
        ...                                  # half of what every layer adds

"Off" is the plain model if the rest of it was frozen while the layers were trained, statistics of
batch norms included; otherwise it is what training made of the rest. Nothing is computed for a
layer that is off, so its parameters get no gradient, and DistributedDataParallel has to be told
``find_unused_parameters=True`` if a layer is off while it trains.
"""

import contextlib
import difflib
import fnmatch
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from torch import nn

from .points import abbreviated_paths, split_points
from .status import switches
from .switch import Switch


def attention_disabled(model: nn.Module, points: str | None = None) -> 'Switched':
    """Leave inserted layers out, and compute plain convolutions, inside a ``with``.

    Args:
        model (nn.Module): A model, or a part of one, that ``Plugged`` put something into.
        points (str, optional): Which, in words joined by ``+``; see :func:`select`. Defaults to
            None, all.

    Returns:
        Switched: A context manager; on leaving, by an exception too, every layer is as it was
        before entering. Contexts can be nested, and one can be entered again inside itself.

    Raises:
        TypeError: If ``points`` is not a string.
        ValueError: If nothing is inserted, or a word names nothing.
    """
    return Switched(select(model, points).values(), 'enabled', False)


def attention_scaled(model: nn.Module, scale: float, points: str | None = None) -> 'Switched':
    """Multiply what inserted layers add by ``scale`` inside a ``with``.

    A layer computes ``x + scale * (layer(x) - x)``, a replaced convolution ``T(x) + scale *
    (conv(x) - T(x))`` with the plain convolution T. The scale is absolute: inside another such
    context it replaces the outer one. A layer that is off stays off.

    Args:
        model (nn.Module): A model, or a part of one, that ``Plugged`` put something into.
        scale (float): A finite number; 1 is the layer itself, beyond 0 to 1 it extrapolates.
        points (str, optional): Which, in words joined by ``+``; see :func:`select`. Defaults to
            None, all.

    Returns:
        Switched: A context manager, as of :func:`attention_disabled`.

    Raises:
        TypeError: If ``scale`` is not a number or ``points`` not a string.
        ValueError: If ``scale`` is not finite, nothing is inserted, or a word names nothing.
    """
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f'scale must be a number, got {scale!r}')
    if scale != scale or scale in (float('inf'), float('-inf')):
        raise ValueError(f'scale must be finite, got {scale!r}')
    return Switched(select(model, points).values(), 'scale', float(scale))


def select(model: nn.Module, points: str | None = None) -> dict[str, Any]:
    """Choose among what was put into a model.

    Args:
        model (nn.Module): A model or a part of one; wrappers for several processes are looked
            through.
        points (str, optional): Words joined by ``+``, each of them a point (``res3``, in whatever
            parts of the model it is), a name with its part (``backbone.res3``), a part or a module
            (``neck``, ``backbone.layer3``), a range (``fpn1-5``) or a pattern (``*.fpn*``), in
            which ``*`` matches dots too. Defaults to None, everything.

    Returns:
        dict[str, Insertion or Replacement]: By name, in the order of the model.

    Raises:
        TypeError: If ``points`` is not a string.
        ValueError: If nothing is inserted, or a word names nothing; the message lists the names.
    """
    model = unwrapped(model)
    parts = switches(model)
    if not parts:
        raise ValueError(f'nothing is inserted into this {type(model).__name__}')
    if points is None:
        return parts
    chosen: set[str] = set()
    for word in split_points(points):
        matches = [name for name, part in parts.items() if _named(word, name, part)]
        if not matches:
            raise ValueError(_unknown(word, parts))
        chosen.update(matches)
    return {name: part for name, part in parts.items() if name in chosen}


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside wrappers for several processes and inside ``torch.compile``."""
    from mmengine.model import is_model_wrapper

    while True:
        if hasattr(model, '_orig_mod'):
            model = model._orig_mod
        elif is_model_wrapper(model):
            model = model.module
        else:
            return model


def _named(word: str, name: str, part: Any) -> bool:
    point = getattr(part, 'point', None)
    return (
        fnmatch.fnmatchcase(name, word)
        or name.startswith(word + '.')
        or (point is not None and fnmatch.fnmatchcase(point, word))
    )


def _unknown(word: str, parts: Mapping[str, Any]) -> str:
    points = [part.point for part in parts.values() if hasattr(part, 'point')]
    near = difflib.get_close_matches(word, [*parts, *points], n=1)
    hint = f'did you mean {near[0]!r}? ' if near else ''
    return f'{word!r} names nothing that is inserted; {hint}there are {abbreviated_paths(parts)}'


class Switched(contextlib.ContextDecorator):
    """Context manager that gives one setting of several switches a value, and puts it back.

    Args:
        parts (Iterable[Switch]): What to set.
        setting (str): ``'enabled'`` or ``'scale'``.
        value (bool or float): Its value inside.
    """

    def __init__(self, parts: Iterable[Switch], setting: str, value: bool | float) -> None:
        self.parts = list(parts)
        self.setting = setting
        self.value = value
        # A stack, so that a context that is entered again inside itself leaves twice.
        self._before: list[list[bool | float]] = []

    def __enter__(self) -> 'Switched':
        self._before.append([getattr(part, self.setting) for part in self.parts])
        for part in self.parts:
            setattr(part, self.setting, self.value)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for part, value in zip(self.parts, self._before.pop(), strict=True):
            setattr(part, self.setting, value)
