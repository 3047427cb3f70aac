"""Take out again what ``Plugged`` put in, of live models and of checkpoints."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from . import one_image
from .convs import Replacement
from .insertion import Insertion, Insertions
from .status import inserted_layers, replacements


def unplug(model: nn.Module) -> nn.Module:
    """Take everything out of a model that ``Plugged`` put in, in place.

    Inserted layers are gone, and replaced convolutions are the very objects again that they took
    the place of, with the weights that they have now. No hook, child, attribute or class of ours
    is left. A copy that was compiled or exported before does not change.

    Args:
        model (nn.Module): A detector, segmenter or classifier, or any module in them. A plain one
            is returned as it is.

    Returns:
        nn.Module: ``model``.

    Raises:
        ValueError: If ``model`` was compiled; what is compiled is not its hooks any more.
    """
    if hasattr(model, '_orig_mod'):
        raise ValueError(
            'the model is compiled; unplug the one that was given to torch.compile '
            'and compile it again'
        )
    owners = [
        module
        for module in model.modules()
        if isinstance(getattr(module, 'attention', None), Insertions)
    ]
    for owner in owners:
        container: Insertions = owner.attention
        for path, replacement in container.replaced.items():
            _put_back(owner, path, replacement)
        for module in owner.modules():
            _remove_hooks(module, container)
            one_image.leave(module)
        if getattr(owner.__dict__.get('init_weights'), '__self__', None) is container:
            del owner.__dict__['init_weights']
        del owner.attention
    return model


def merge(model: nn.Module) -> nn.Module:
    """Refuse: attention cannot be merged into the weights of the layers around it.

    Raises:
        ValueError: Always, with the reason and what can be done instead.
    """
    names = ', '.join(
        {type(insertion.layer).__name__: None for insertion in inserted_layers(model).values()}
        | {type(part.conv).__name__: None for part in replacements(model).values()}
    )
    raise ValueError(
        f'{names or "attention"} cannot be merged into the convolutions around it: '
        'what it multiplies its input by depends on that input, so no fixed weight '
        'gives the same output. Use unplug to take it out, or fuse_conv_bn of mmcv, '
        'which merges batch norms, before or after'
    )


def added_keys(model: nn.Module) -> list[str]:
    """Return the keys of ``model.state_dict()`` that a plain model does not have.

    They are found by the modules that were added, not by their names.
    """
    prefixes = {id(module): f'{path}.' if path else '' for path, module in model.named_modules()}
    insertions = tuple(
        prefixes[id(insertion.layer)] for insertion in inserted_layers(model).values()
    )
    own = {
        prefixes[id(part.conv)] + key
        for part in replacements(model).values()
        for key in part.added_keys()
    }
    return [
        key
        for key in model.state_dict()
        if key in own or (insertions and key.startswith(insertions))
    ]


def strip(state: Mapping[str, Any], keys: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Leave the keys of inserted layers out of a state dict.

    Args:
        state (Mapping): A state dict, of a model wrapped for several processes too.
        keys (Iterable[str]): What :func:`added_keys` says of the model.

    Returns:
        tuple[dict, list[str]]: The rest, in its order, and the keys that were left out.
    """
    ours = set(keys)
    removed = [key for key in state if key.removeprefix('module.') in ours]
    gone = set(removed)
    return {key: value for key, value in state.items() if key not in gone}, removed


def _put_back(owner: nn.Module, path: str, replacement: Replacement) -> None:
    conv, plain = replacement.conv, replacement.plain
    for name in plain._parameters:
        plain._parameters[name] = conv._parameters[name]
    plain.train(conv.training)
    parent, _, name = path.rpartition('.')
    setattr(owner.get_submodule(parent), name, plain)


def _remove_hooks(module: nn.Module, container: Insertions) -> None:
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for number, hook in list(hooks.items()):
            bound = getattr(hook, '__self__', None)
            if isinstance(getattr(bound, 'replacement', None), Replacement):
                bound.undo(module)  # what was arranged around a replaced convolution
                hooks.pop(number, None)
            elif isinstance(bound, Insertion) or bound is container:
                del hooks[number]
