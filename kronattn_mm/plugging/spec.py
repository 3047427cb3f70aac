"""What is plugged into a model, as plain data: written into a small file, and plugged in again.

A file comes from somebody else, so that nothing in it may name code to import or weights to fetch:
types are looked up among what is registered, and only there.
"""

import contextlib
import importlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import Registry
from torch import nn

from .base_identity import base_state, fingerprint, shapes_of
from .build import find_class
from .convs import Replacement, geometry
from .insertion import Insertion, Insertions
from .plugged import plug_at
from .points import Point
from .removal import unplug

# What only says how a layer begins, and makes no difference to one with trained weights.
_INITIAL = ('zero_init', 'init_cfg')
# Arguments with which constructors of some libraries load something.
_LOADING = ('pretrained', 'checkpoint', 'init_cfg', 'trust_remote_code', 'load_from')
_SCOPES = (
    'mmengine',
    'mmcv',
    'mmdet',
    'mmseg',
    'mmpretrain',
    'mmrotate',
    'mmyolo',
    'mmpose',
    'mmdet3d',
    'kronattn_mm',
)


def parts_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the plugged modules of a model by their paths; the model itself has an empty one."""
    return {
        path: module
        for path, module in model.named_modules()
        if isinstance(module._modules.get('attention'), Insertions)
    }


def spec_of(model: nn.Module, named: bool = True) -> list[dict[str, Any]]:
    """Describe what is plugged into a model.

    Args:
        model (nn.Module): A model or a part of one.
        named (bool): Every class must have a registered name. Defaults to True.

    Returns:
        list[dict]: For each plugged module its ``path``, ``class`` and ``fingerprint``, ``insert``
        (``point``, ``path``, ``index``, the user's words ``at``, ``layer``, and the settings) and
        ``convs`` (``paths``, ``at``, ``layer``, ``enabled``). Nothing but what JSON has.

    Raises:
        ValueError: If a class is not registered, or an argument is not plain data.
    """
    return [_part(path, module, named) for path, module in parts_of(model).items()]


def plug_spec(model: nn.Module, spec: Sequence[Mapping[str, Any]]) -> nn.Module:
    """Plug into a plain model what ``spec`` describes; if that fails, the model stays plain.

    Args:
        model (nn.Module): The model that the paths in ``spec`` are paths of.
        spec (Sequence[Mapping]): What :func:`spec_of` returned, possibly from a file.

    Raises:
        ValueError: If a type is not registered, an argument would load something, a path is not
            there, or a layer does not fit.
    """
    for part in spec:
        for layer in (*part['insert'], *part['convs']):
            check_names_only(layer['layer'])
    done = []
    try:
        for part in spec:
            try:
                module = model.get_submodule(part['path'])
            except AttributeError as error:
                raise ValueError(
                    f'{type(model).__name__} has no module {part["path"]!r}, into '
                    'which layers are to be inserted'
                ) from error
            plug_at(
                module,
                [
                    (Point(entry['point'], entry['path'], entry['index']), _entry(entry))
                    for entry in part['insert']
                ],
                [_conv_entry(entry) for entry in part['convs']],
            )
            done.append(module)
            for entry in part['convs']:
                for path in entry['paths']:
                    module.attention.replaced[path].at = entry['at']
    except Exception:
        for module in done:
            unplug(module)
        raise
    return model


def differences(
    ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]], here: str = 'the model'
) -> list[str]:
    """Say in what two descriptions make different layers of the same keys.

    Arguments that are left out count as their defaults; how a layer starts makes no difference.
    """
    texts = []
    mine, other = dict(_flat(ours)), dict(_flat(theirs))
    for name in {**mine, **other}:
        if name not in other:
            texts.append(f'{name} is in {here} and not in the file')
        elif name not in mine:
            texts.append(f'{name} is in the file and not in {here}')
        else:
            a, b = _complete(mine[name]), _complete(other[name])
            texts += [
                f'{name} has {key}={b.get(key)!r} in the file and {key}={a.get(key)!r} in {here}'
                for key in {**a, **b}
                if a.get(key) != b.get(key) and key not in _INITIAL
            ]
    return texts


def check_names_only(layer: Any) -> None:
    """Raise ValueError if a layer's config names anything but registered types and plain data."""
    for config in _dicts(layer):
        for key in config:
            if key in _LOADING and config[key] not in (None, False):
                raise ValueError(
                    f'a layer of the file has {key}={config[key]!r}; a file may not '
                    'have anything loaded'
                )
        if 'type' in config:
            check_registered(config['type'])


def check_registered(name: Any) -> None:
    """Raise ValueError unless ``name`` is that of a registered model or layer.

    ``Registry.get`` would import what has a dotted path.
    """
    if not isinstance(name, str):
        raise ValueError(f'a layer of the file has the type {name!r}, which is no name')
    scope, _, key = name.rpartition('.')
    root = MMENGINE_MODELS
    if scope and scope not in root.children and scope not in _SCOPES:
        raise ValueError(
            f'the type {name!r} of a layer of the file belongs to {scope!r}, which '
            'is no library known here; import the package that registers it first'
        )
    if not scope and name in root.module_dict:
        return
    if not scope:
        with contextlib.suppress(ImportError):
            importlib.import_module('mmcv.cnn')  # its layers are in the root registry
    if scope in _SCOPES:
        # Imports the library, so that what it registers is there.
        with root.switch_scope_and_registry(scope) as registry:
            registry.import_from_location()
    registry = root.children.get(scope) if scope else root
    known = registry is not None and (key in registry.module_dict or _on_demand(registry, key))
    if not known:
        raise ValueError(
            f'the type {name!r} of a layer of the file is not registered; import the '
            'package that registers it first'
        )


def _on_demand(registry: Registry, key: str) -> bool:
    return (
        getattr(registry, 'scope', None) == 'kronattn_mm'
        and '.' not in key
        and registry.get(key) is not None
    )


def _part(path: str, module: nn.Module, named: bool) -> dict[str, Any]:
    container: Insertions = module.attention
    insert = [_describe_insertion(insertion, named) for insertion in container.insertions.values()]
    groups: dict[str, dict[str, Any]] = {}
    for conv_path, replacement in container.replaced.items():
        entry = dict(
            at=replacement.at, layer=_describe_conv(replacement, named), enabled=replacement.enabled
        )
        group = groups.setdefault(json.dumps(entry, sort_keys=True), dict(paths=[], **entry))
        group['paths'].append(conv_path)
    return {
        'path': path,
        'class': type(module).__name__,
        'fingerprint': fingerprint(shapes_of(base_state(module))),
        'insert': insert,
        'convs': list(groups.values()),
    }


def _describe_insertion(insertion: Insertion, named: bool) -> dict[str, Any]:
    where = f'the layer at {insertion.point!r}'
    return dict(
        point=insertion.point,
        path=insertion.path,
        index=insertion.index,
        at=insertion.at,
        layer=_plain(insertion.config, where, insertion.layer if named else None),
        shape=None if insertion.shape is None else list(insertion.shape),
        norm_eval=insertion.norm_eval,
        with_cp=insertion.with_cp,
        enabled=insertion.enabled,
    )


def _describe_conv(replacement: Replacement, named: bool) -> dict[str, Any]:
    own = {
        key: value
        for key, value in replacement.config.items()
        if key not in geometry(replacement.plain)
    }
    return _plain(
        own,
        f'the convolution {type(replacement.conv).__name__}',
        replacement.conv if named else None,
    )


def _plain(config: Mapping[str, Any], where: str, module: nn.Module | None) -> dict[str, Any]:
    content = {key: value for key, value in config.items() if key not in ('type', '_scope_')}
    given = config['type']
    name = _name_of(type(module)) if module is not None else None
    if name is None and isinstance(given, str):
        name = _name_of(find_class(given, 'layer')) or given
    if name is None:
        cls = type(module) if module is not None else given
        if module is not None:
            raise ValueError(
                f'{where} is a {cls.__name__}, which is not registered, so that no '
                'file can name it; register it with MODELS.register_module()'
            )
        name = _name_of(given) or f'{cls.__module__}.{cls.__qualname__}'
    return dict(type=name, **_data(content, where))


def _data(value: Any, where: str) -> Any:
    """Turn a config into what JSON has; classes become the names they are registered under."""
    if isinstance(value, Mapping):
        return {str(key): _data(item, where) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_data(item, where) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    name = _name_of(value) if callable(value) else None
    if name is None:
        raise ValueError(f'{where} has an argument that no file can hold: {value!r}')
    return name


def _name_of(wanted: Any) -> str | None:
    """Return the name, with its scope, under which something is registered."""
    registries = [('', MMENGINE_MODELS)]
    registries += [(f'{scope}.', child) for scope, child in MMENGINE_MODELS.children.items()]
    for scope, registry in registries:
        for name, found in registry.module_dict.items():
            if found is wanted:
                return scope + name
    return None


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    shape = entry.get('shape')
    return dict(
        at=entry['at'],
        layer=dict(entry['layer']),
        norm_eval=entry['norm_eval'],
        with_cp=entry['with_cp'],
        enabled=entry['enabled'],
        shape=None if shape is None else tuple(shape),
    )


def _conv_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    return dict(at='+'.join(entry['paths']), layer=dict(entry['layer']), enabled=entry['enabled'])


def _flat(spec: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for part in spec:
        prefix = f'{part["path"]}.' if part['path'] else ''
        for entry in part['insert']:
            yield (
                prefix + entry['point'],
                {**entry['layer'], 'its module': entry['path'], 'its output': entry['index']},
            )
        for entry in part['convs']:
            for path in entry['paths']:
                yield prefix + path, entry['layer']


def _complete(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of the arguments that are left out."""
    try:
        cls = find_class(layer['type'], 'layer')
        parameters = inspect.signature(cls).parameters.values()
    except (ImportError, TypeError, ValueError, RuntimeError):
        return dict(layer)
    defaults = {
        parameter.name: list(parameter.default)
        if isinstance(parameter.default, tuple)
        else parameter.default
        for parameter in parameters
        if parameter.default is not parameter.empty
    }
    return {**defaults, **layer}


def _dicts(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _dicts(item)
