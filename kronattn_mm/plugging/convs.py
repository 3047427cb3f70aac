"""Replace chosen convolutions of a module by another type with the same geometry and weights.

``conv_cfg`` of the OpenMMLab libraries changes every convolution of a backbone or none; a paper
that attends only to the convolutions of the blocks needs a choice. The replacement has the name of
the convolution it replaces, so ``weight`` and ``bias`` keep their keys and a checkpoint of the
plain network loads as before.
"""

import fnmatch
from collections.abc import Container
from typing import Any

from mmengine.registry import MODELS as MMENGINE_MODELS
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from .build import check_arguments, find_class
from .points import abbreviated_paths, split_points


def replace_convs(base: nn.Module, at: str, layer: dict[str, Any],
                  taken: Container[str] = ()) -> dict[str, dict[str, Any]]:
    """Replace the convolutions of ``base`` whose paths match ``at``, in place.

    Args:
        base (nn.Module): A built backbone, neck or head.
        at (str): Patterns of dotted paths joined by ``+``; ``layer*`` is every convolution whose
            path begins so, as ``*`` matches dots as well. A path of a module stands for all
            convolutions in it.
        layer (dict): Config of the new type, without the geometry.
        taken (Container[str]): Paths that were replaced before and must not be named again.

    Returns:
        dict[str, dict]: Path and complete config of each replacement.

    Raises:
        ValueError: If a pattern matches nothing (the message lists the convolutions there are),
            or a convolution cannot be replaced without losing something.
    """
    convs = {path: module for path, module in base.named_modules()
             if isinstance(module, _ConvNd) and not isinstance(module, _ConvTransposeNd)}
    chosen: dict[str, _ConvNd] = {}
    for word in split_points(at):
        matches = [path for path in convs
                   if fnmatch.fnmatchcase(path, word) or path.startswith(word + '.')]
        if not matches:
            raise ValueError(f'{word!r} matches no convolution of {type(base).__name__}; '
                             f'there are {abbreviated_paths(convs)}')
        for path in matches:
            if path in taken:
                raise ValueError(f'the convolution {path!r} is named by two entries of `convs`')
            chosen[path] = convs[path]
    replaced = {}
    for path, conv in chosen.items():
        arguments = geometry(conv)
        own = [name for name in layer if name in arguments]
        if own:
            raise ValueError(f'{own[0]!r} in `layer` of `convs` is taken from the convolution that '
                             f'is replaced, got {own[0]}={layer[own[0]]!r}')
        config = {**layer, **arguments}
        new = _build_conv(config, conv, path)
        parent, _, name = path.rpartition('.')
        setattr(base.get_submodule(parent), name, new)
        replaced[path] = config
    return replaced


def geometry(conv: _ConvNd) -> dict[str, Any]:
    """Return the constructor arguments that make a convolution of the same geometry."""
    arguments = dict(in_channels=conv.in_channels, out_channels=conv.out_channels,
                     kernel_size=conv.kernel_size, stride=conv.stride, padding=conv.padding,
                     dilation=conv.dilation, groups=conv.groups, bias=conv.bias is not None)
    if conv.padding_mode != 'zeros':
        arguments['padding_mode'] = conv.padding_mode
    return arguments


def _build_conv(config: dict[str, Any], conv: _ConvNd, path: str) -> nn.Module:
    if set(conv.state_dict()) - {'weight', 'bias'}:
        raise ValueError(f'the convolution {path!r} is a {type(conv).__name__} with parameters of '
                         f'its own ({", ".join(conv.state_dict())}); only plain ones are replaced')
    if conv._forward_hooks or conv._forward_pre_hooks:
        raise ValueError(f'the convolution {path!r} carries a hook that would be lost')
    arguments = {key: value for key, value in config.items() if key not in ('type', '_scope_')}
    if 'type' not in config:
        raise ValueError(f'a convolution needs a type, got {config!r}')
    cls = find_class(config['type'], 'convolution')
    check_arguments(cls, arguments)
    with MMENGINE_MODELS.switch_scope_and_registry(config.get('_scope_')):
        new = cls(**arguments)
    if not isinstance(new, nn.Module):
        raise TypeError(f'{config["type"]} at {path!r} is not a module')
    new = new.to(device=conv.weight.device, dtype=conv.weight.dtype)
    lost = [key for key, value in conv.state_dict().items()
            if key not in new.state_dict() or new.state_dict()[key].shape != value.shape]
    if lost:
        raise ValueError(f'{type(new).__name__} has no {", ".join(lost)} of the shape that the '
                         f'convolution {path!r} has, so a trained weight would be lost')
    new.load_state_dict(conv.state_dict(), strict=False)
    for name in ('weight', 'bias'):
        parameter = getattr(conv, name)
        if parameter is not None:
            getattr(new, name).requires_grad_(parameter.requires_grad)
    new.train(conv.training)
    return new
