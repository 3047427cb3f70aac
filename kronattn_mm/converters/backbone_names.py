"""Backbones from the names of one library to those of another, attended or not.

Convolutions that ``Plugged`` or ``conv_cfg`` replaced keep the names of those they replaced, and
what is new in them (``<convolution>.attention.*``) goes along. So do inserted layers, whose names
are those of the modules that they come after. Nothing is computed, so the result is exact.
"""

from collections.abc import Mapping

from torch import Tensor

from .backbone_tables import LIBRARIES, classifier_name, is_resnet_key, layer_names, recognise
from .checkpoint import ConversionError
from .conversion import Conversion


def convert(
    state: Mapping[str, Tensor], to: str, source: str | None = None, bare: bool = False
) -> Conversion:
    """Rename the weights of a backbone, and of the classifier after it.

    Args:
        state (Mapping[str, Tensor]): Weights of a backbone or of a whole model.
        to (str): Library whose names are wanted.
        source (str, optional): Library whose names the weights have. Defaults to what the names
            say.
        bare (bool): Leave the classifier out, and have no ``backbone.`` before the names.
            Defaults to False.

    Raises:
        ConversionError: If the family is unknown, a library does not have it, a weight of the
            backbone has no name there, or weights are missing.
    """
    wrapped = {key: key.removeprefix('module.') for key in state}
    whole = any(name.startswith('backbone.') for name in wrapped.values())
    keys = {
        name.removeprefix('backbone.') if name.startswith('backbone.') else name: key
        for key, name in wrapped.items()
        if not whole or name.startswith('backbone.')
    }
    others = {
        name: key for key, name in wrapped.items() if whole and not name.startswith('backbone.')
    }
    family, found = recognise(keys)
    if family == 'resnet' and whole:
        found = 'mmpretrain' if 'head.fc.weight' in others else 'mmdet'
    source = source or found
    for library in (source, to):
        if library not in LIBRARIES[family]:
            raise ConversionError(
                f'{family} has no names of {library!r}; those known are of '
                f'{", ".join(LIBRARIES[family])}'
            )
    if source == to:
        raise ConversionError(f'the weights have the names of {to} already')
    if source != found and not _same_names(family, source, found):
        raise ConversionError(f'the weights have the names of {found}, not of {source}')
    prefix = '' if bare or to == 'torchvision' else 'backbone.'
    names = _names(family, source, to)
    points = {old.replace('.', '_'): new for old, new in _modules(names).items()}
    conversion = Conversion()
    head = classifier_name(family, source)
    for name, key in (keys | others).items():
        layer, rest = _split(name, names, family)
        if head is not None and name.startswith(f'{head}.'):
            new_head = None if bare else classifier_name(family, to)
            if new_head is None:
                conversion.dropped[key] = 'classifier' if bare else f'{to} has no classifier there'
            else:
                conversion.put(f'{new_head}{name[len(head) :]}', state[key], key)
        elif name in others:
            conversion.dropped[key] = f'not of the backbone; {to} has no such part'
        elif name.startswith('attention.'):
            conversion.put(prefix + _inserted(name, points, to), state[key], key)
        elif layer is None:
            raise ConversionError(f'{key} is no weight of a {family} of {source}')
        elif names is not None and names[layer] is None:
            conversion.dropped[key] = f'{to} does not have this layer of {family}'
        else:
            new = layer if names is None else names[layer]
            if to == 'torchvision' and '.attention.' in f'.{rest}':
                raise ConversionError(
                    f'{key} belongs to attention, which torchvision does not '
                    'have; take it out first (kronattn strip)'
                )
            conversion.put(f'{prefix}{new}.{rest}', state[key], key)
    if names is not None:
        _check_complete(keys, names, family, source)
    conversion.notes.append(
        f'{family}: names of {source} -> {to}; nothing is computed, outputs '
        'are equal bit for bit where the libraries compute alike'
    )
    return conversion


def _names(family: str, source: str, to: str) -> dict[str, str | None] | None:
    """Return new name by old, None for a family whose names are the same everywhere."""
    if family == 'resnet':
        return None
    return {
        old: new
        for old, new in zip(layer_names(family, source), layer_names(family, to), strict=True)
        if old is not None
    }


def _same_names(family: str, one: str, other: str) -> bool:
    if family == 'resnet':
        return True
    pairs = zip(layer_names(family, one), layer_names(family, other), strict=True)
    return all(left == right for left, right in pairs if None not in (left, right))


def _split(
    name: str, names: Mapping[str, str | None] | None, family: str
) -> tuple[str | None, str]:
    """Return the layer that a key belongs to, and the rest of the key."""
    if names is None:
        if not is_resnet_key(name):
            return None, ''
        layer, _, rest = name.rpartition('.')
        return layer, rest
    layer = name
    while layer:
        layer = layer.rpartition('.')[0]
        if layer in names:
            return layer, name[len(layer) + 1 :]
    return None, ''


def _modules(names: Mapping[str, str | None] | None) -> dict[str, str]:
    """Return new path by old of the modules around layers, as far as the two agree on them."""
    if names is None:
        return {}
    found: dict[str, set[str | None]] = {}
    for old, new in names.items():
        # One level up: mmcv's ConvModule, the block that a point can follow.
        found.setdefault(old.rpartition('.')[0], set()).add(
            None if new is None else new.rpartition('.')[0]
        )
    return {
        old: next(iter(new))
        for old, new in found.items()
        if len(new) == 1 and None not in new and old
    }


def _inserted(name: str, points: Mapping[str, str], to: str) -> str:
    """Return the key of an inserted layer in the new names."""
    if to == 'torchvision':
        raise ConversionError(
            f'{name} is an inserted layer, which torchvision does not have; '
            'take it out first (kronattn strip)'
        )
    _, point, rest = name.split('.', 2)
    return f'attention.{points.get(point, point).replace(".", "_")}.{rest}'


def _check_complete(
    keys: Mapping[str, str], names: Mapping[str, str | None], family: str, source: str
) -> None:
    for layer, new in names.items():
        if new is not None and f'{layer}.weight' not in keys:
            raise ConversionError(
                f'{layer}.weight is missing, so this is no whole {family} of {source}'
            )
