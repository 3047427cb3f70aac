"""Every layer of the package as the support table tests it: arguments, weights, inputs.

What layers there are and what they take comes from :mod:`kronattn_mm.listing`, so that a new layer
is tested without a word here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .. import layers
from ..listing import list_layers
from ..listing.layers import REQUIRED

CHANNELS = 32
# Spatial shapes by number of axes: the first is exported with, one of the others is odd.
SHAPES: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((48,), (37,), (64,)),
    2: ((12, 16), (15, 21), (20, 9)),
    3: ((4, 6, 8), (3, 7, 5), (6, 4, 9)),
}
BATCHES = (2, 3, 4)
# What `convs` would take from a plain convolution.
_GEOMETRY = dict(out_channels=CHANNELS, kernel_size=3, padding=1)
_POINTWISE = dict(kernel_size=1, padding=0)  # which has a path of its own
# Layers that compute something else with other arguments.
VARIANTS: dict[str, tuple[Mapping[str, Any], ...]] = {
    'CondConv2d': (_POINTWISE,),
    'DynamicConv2d': (_POINTWISE,),
    'EfficientAttention2d': (dict(normalization='scaling'), dict(num_heads=4)),
    'KroneckerAttention2d': (dict(mode='qkv'), dict(coefficient_norm='batch_norm')),
    'LatentGNN2d': (dict(mode='symmetric'),),
    'RegularAttention2d': (dict(pooling=True),),
    'ShiftBalanceConv2d': (_POINTWISE,),
    'SqueezeExciteConv2d': (_POINTWISE,),
}


@dataclass(frozen=True)
class LayerCase:
    """A layer with arguments.

    Attributes:
        layer: Its name in :mod:`kronattn_mm.layers`.
        use: ``'insert'`` or ``'convs'``, as the listing has it.
        arguments: Beside those that ``Plugged`` finds out.
    """

    layer: str
    use: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How the table calls it."""
        arguments = ', '.join(f'{key}={value!r}' for key, value in self.arguments.items())
        return f'{self.layer}({arguments})' if arguments else self.layer

    @property
    def axes(self) -> int:
        """Spatial axes of what it takes, from the end of its name."""
        match = re.search(r'([123])d$', self.layer)
        return int(match[1]) if match else 2

    def build(self) -> nn.Module:
        """Build it in eval mode with weights that do something, the same in every call.

        Raises:
            TypeError, ValueError: If the layer cannot be built with these arguments.
        """
        cls = getattr(layers, self.layer)
        arguments = dict(self.arguments)
        entry = list_layers([self.layer])[0]
        if any(argument.name == 'zero_init' for argument in entry.arguments):
            arguments['zero_init'] = False
        if self.use == 'convs':
            arguments = {**_GEOMETRY, **arguments}
        missing = [
            argument.name
            for argument in entry.arguments
            if argument.default == REQUIRED and argument.name not in arguments
        ]
        if missing:
            raise TypeError(f'{self.layer} needs {", ".join(missing)}, for which no value is known')
        layer = cls(in_channels=CHANNELS, **arguments)
        make_active(layer)
        return layer.eval()

    def inputs(self) -> list[Tensor]:
        """Return an input of each shape, the same in every call."""
        generator = torch.Generator().manual_seed(1)
        return [
            torch.randn(batch, CHANNELS, *shape, generator=generator)
            for batch, shape in zip(BATCHES, SHAPES[self.axes], strict=True)
        ]


def layer_cases(names: Sequence[str] = ()) -> list[LayerCase]:
    """List every layer of the package, with its variants, or those of some names.

    Args:
        names (Sequence[str]): Names of layers. Defaults to none: all.

    Raises:
        ValueError: If there is no layer of a name; the message has the nearest.
    """
    ours = {f'kronattn_mm.{name}' for name in layers.__all__}
    entries = list_layers(names)
    strange = [entry.type for entry in entries if entry.type not in ours]
    if names and strange:
        raise ValueError(f'{strange[0]!r} is not a layer of this package')
    cases = []
    for entry in entries:
        if entry.type in ours:
            name = entry.type.rpartition('.')[2]
            cases += [
                LayerCase(name, entry.use, variant) for variant in ({}, *VARIANTS.get(name, ()))
            ]
    return cases


def make_active(module: nn.Module) -> None:
    """Give a module weights of usual size and norms that have seen something, in place."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            fan = parameter[0].numel() if parameter.dim() > 1 else 4
            parameter.normal_(0, fan**-0.5, generator=generator)
        for child in module.modules():
            if isinstance(child, _BatchNorm) and child.running_mean is not None:
                child.running_mean.normal_(0, 0.3, generator=generator)
                child.running_var.uniform_(0.5, 2.0, generator=generator)
                if child.weight is not None:
                    child.weight.uniform_(0.5, 1.5, generator=generator)
