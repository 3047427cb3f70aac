"""Build a base or a layer from its config, with messages that name the choices."""

import difflib
import inspect
from typing import Any

from mmengine.registry import MODELS as MMENGINE_MODELS
from torch import nn

from ..environment import check_mmcv


def find_class(name: Any, what: str) -> Any:
    """Look ``name`` up in the registries, starting from the current default scope.

    Args:
        name (str or callable): Registered name such as ``'mmdet.ResNet'``, or the class itself.
        what (str): What is being looked for, for the messages.

    Raises:
        ImportError: If the library of that name cannot be imported.
        TypeError: If ``name`` is neither a string nor callable.
        ValueError: If nothing is registered under ``name``.
    """
    if callable(name):
        return name
    if not isinstance(name, str):
        raise TypeError(f'the type of {what} must be a registered name or a class, got {name!r}')
    with MMENGINE_MODELS.switch_scope_and_registry(None) as registry:
        try:
            found = registry.get(name)
        except ImportError as error:
            check_mmcv()
            raise ImportError(f'{what} {name!r} cannot be imported: {error}') from error
        if found is not None:
            return found
        names = list(registry.module_dict)
        for scope, child in MMENGINE_MODELS.children.items():
            names += [f'{scope}.{key}' for key in child.module_dict]
    scope = name.split('.')[0] if '.' in name else None
    if scope in ('mmdet', None):
        check_mmcv()
    near = difflib.get_close_matches(name, names, n=3)
    if scope is not None and name.partition('.')[2] in MMENGINE_MODELS.module_dict:
        near = [name.partition('.')[2]]  # mmcv's layers are in the root registry, without a scope
    hint = (
        f'did you mean {" or ".join(map(repr, near))}?'
        if near
        else f'write it with its scope, such as mmdet.ResNet or kronattn_mm.{_layers()}'
    )
    raise ValueError(f'{what} {name!r} is not registered; {hint}')


def build_layer(config: dict[str, Any]) -> nn.Module:
    """Build an inserted layer from ``config``, which holds ``type`` and ``in_channels``.

    Raises:
        TypeError: If an argument is not one of the layer's; the message lists those there are.
        ValueError: If the type is not registered.
    """
    arguments = dict(config)
    if 'type' not in arguments:
        raise ValueError(f'a layer needs a type, got {config!r}')
    name = arguments.pop('type')
    arguments.pop('_scope_', None)
    cls = find_class(name, 'layer')
    check_arguments(cls, arguments)
    with MMENGINE_MODELS.switch_scope_and_registry(config.get('_scope_')):
        return cls(**arguments)


def check_arguments(cls: Any, arguments: dict[str, Any]) -> None:
    """Raise TypeError if ``cls`` does not take one of ``arguments``, naming those it takes."""
    parameters = inspect.signature(cls).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    unknown = [name for name in arguments if name not in parameters]
    if not unknown:
        return
    near = difflib.get_close_matches(unknown[0], parameters, n=1)
    hint = f', did you mean {near[0]!r}?' if near else ''
    raise TypeError(
        f'{cls.__name__} has no argument {unknown[0]!r}{hint} '
        f'(value given: {arguments[unknown[0]]!r}); its arguments are '
        f'{", ".join(parameters)}'
    )


def _layers() -> str:
    from .. import layers

    return '/'.join(layers.__all__)
