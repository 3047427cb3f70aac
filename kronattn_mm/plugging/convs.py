"""Replace chosen convolutions of a module by another type with the same geometry and weights.

``conv_cfg`` of the OpenMMLab libraries changes every convolution of a backbone or none; a paper
that attends only to the convolutions of the blocks needs a choice. The replacement has the name of
the convolution it replaces, so ``weight`` and ``bias`` keep their keys and a checkpoint of the
plain network loads as before. Switched off, a replacement computes the plain convolution.
"""

import fnmatch
from typing import Any

from mmengine.registry import MODELS as MMENGINE_MODELS
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..layers.hooks import has_hooks
from .after_norm import SumAfterNorm
from .build import check_arguments, find_class
from .points import abbreviated_paths, split_points
from .switch import Switch

# Where the methods come from that do nothing but convolve; mmcv's look for empty batches as well.
_PLAIN = ('torch.nn.modules.conv', 'mmcv.cnn.bricks.wrappers')


class Replacement(Switch):
    """One replaced convolution and the plain one that it took the place of.

    The bound method :meth:`forward` stands in for the one of the new convolution's class, because
    no hook can keep a forward pass from being computed: norms and statistics inside a convolution
    that is off must not go on learning.

    Args:
        conv (nn.Module): The convolution that was put in, with the weights of ``plain``.
        plain (_ConvNd): The one that was there, whose weights ``conv`` has taken over.
        config (dict): What ``conv`` was built from, the geometry included.
        enabled (bool): Whether ``conv`` does more than ``plain`` did. Defaults to True.
        at (str): The pattern with which the config named the convolution.
    """

    def __init__(
        self,
        conv: nn.Module,
        plain: _ConvNd,
        config: dict[str, Any],
        enabled: bool = True,
        at: str = '',
    ) -> None:
        self.conv = conv
        self.config = config
        self.enabled = enabled
        self.at = at
        # Kept for its class and geometry, without weights: those live in one place only.
        for name in plain._parameters:
            plain._parameters[name] = None
        self.plain = plain
        conv.forward = self.forward

    @property
    def module(self) -> nn.Module:
        """The convolution that was put in."""
        return self.conv

    def forward(self, x: Tensor) -> Tensor:
        """Convolve as far as the replacement is switched on."""
        conv = self.conv
        if not self.enabled:
            return self.plain._conv_forward(x, conv.weight, conv.bias)
        y = type(conv).forward(conv, x)
        if self.scale == 1:
            return y
        plain = self.plain._conv_forward(x, conv.weight, conv.bias)
        return plain + self.scale * (y - plain)

    def added(self) -> dict[str, nn.Parameter]:
        """Return the parameters that the plain convolution does not have, by their names in it."""
        return {
            name: parameter
            for name, parameter in self.conv.named_parameters()
            if name not in self.plain._parameters
        }

    def added_keys(self) -> list[str]:
        """Return the keys of ``conv.state_dict()`` that the plain convolution does not have."""
        return [key for key in self.conv.state_dict() if key not in self.plain._parameters]

    def __repr__(self) -> str:
        return (
            f'Replacement(conv={type(self.conv).__name__}, enabled={self.enabled}, '
            f'scale={self.scale})'
        )


def replace_convs(
    base: nn.Module,
    at: str,
    layer: dict[str, Any],
    replaced: dict[str, Replacement],
    enabled: bool = True,
) -> None:
    """Replace the convolutions of ``base`` whose paths match ``at``, in place.

    Args:
        base (nn.Module): A built backbone, neck or head.
        at (str): Patterns of dotted paths joined by ``+``; ``layer*`` is every convolution whose
            path begins so, as ``*`` matches dots as well. A path of a module stands for all
            convolutions in it.
        layer (dict): Config of the new type, without the geometry.
        replaced (dict[str, Replacement]): What was replaced before, by path, and must not be
            named again; every replacement is added as soon as it is made.
        enabled (bool): Whether the new convolutions are switched on. Defaults to True.

    Raises:
        ValueError: If a pattern matches nothing (the message lists the convolutions there are),
            or a convolution cannot be replaced without losing something.
    """
    convs = {
        path: module
        for path, module in base.named_modules()
        if isinstance(module, _ConvNd) and not isinstance(module, _ConvTransposeNd)
    }
    chosen: dict[str, _ConvNd] = {}
    for word in split_points(at):
        matches = [
            path for path in convs if fnmatch.fnmatchcase(path, word) or path.startswith(word + '.')
        ]
        if not matches:
            raise ValueError(
                f'{word!r} matches no convolution of {type(base).__name__}; '
                f'there are {abbreviated_paths(convs)}'
            )
        for path in matches:
            if path in replaced:
                raise ValueError(f'the convolution {path!r} is named by two entries of `convs`')
            chosen[path] = convs[path]
    for path, conv in chosen.items():
        arguments = geometry(conv)
        own = [name for name in layer if name in arguments]
        if own:
            raise ValueError(
                f'{own[0]!r} in `layer` of `convs` is taken from the convolution that '
                f'is replaced, got {own[0]}={layer[own[0]]!r}'
            )
        config = {**layer, **arguments}
        new = _build_conv(config, conv, path)
        parent_path, _, name = path.rpartition('.')
        parent = base.get_submodule(parent_path)
        replaced[path] = Replacement(new, conv, config, enabled, at)
        if getattr(new, 'place', None) == 'after_norm':
            SumAfterNorm(parent, name, replaced[path])
        setattr(parent, name, new)


def geometry(conv: _ConvNd) -> dict[str, Any]:
    """Return the constructor arguments that make a convolution of the same geometry."""
    arguments = dict(
        in_channels=conv.in_channels,
        out_channels=conv.out_channels,
        kernel_size=conv.kernel_size,
        stride=conv.stride,
        padding=conv.padding,
        dilation=conv.dilation,
        groups=conv.groups,
        bias=conv.bias is not None,
    )
    if conv.padding_mode != 'zeros':
        arguments['padding_mode'] = conv.padding_mode
    return arguments


def _build_conv(config: dict[str, Any], conv: _ConvNd, path: str) -> nn.Module:
    if set(conv.state_dict()) - {'weight', 'bias'}:
        raise ValueError(
            f'the convolution {path!r} is a {type(conv).__name__} with parameters of '
            f'its own ({", ".join(conv.state_dict())}); only plain ones are replaced'
        )
    # ConvWS standardises its weight first, Conv2dAdaptivePadding pads by the input's size.
    if conv.forward.__module__ not in _PLAIN or conv._conv_forward.__module__ not in _PLAIN:
        raise ValueError(
            f'the convolution {path!r} is a {type(conv).__name__}, whose forward pass '
            'does more than convolve, which would be lost; only plain ones are '
            'replaced'
        )
    if has_hooks(conv):
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
    lost = [
        key
        for key, value in conv.state_dict().items()
        if new._parameters.get(key) is None or new._parameters[key].shape != value.shape
    ]
    if lost:
        raise ValueError(
            f'{type(new).__name__} has no {", ".join(lost)} of the shape that the '
            f'convolution {path!r} has, so a trained weight would be lost'
        )
    for name, parameter in conv._parameters.items():
        # The parameter itself, which an optimizer may know already. Not load_state_dict, which is
        # what the loading of a trained network calls and some types answer to (DynamicConv2d
        # makes all its kernels copies of the one loaded).
        new._parameters[name] = parameter
    new.train(conv.training)
    return new
