"""MobileNetV2 with attention in all 50 bottleneck convolutions against the static network.

Width 1.0, 224 x 224, backbone and neck, float32, inference: the networks as they are trained, and
with every batch norm folded (:func:`kronattn_mm.plugging.fused`). On a CPU with two threads or more
the attended pointwise convolutions are matrix products, which take less time than
torch's convolution; `static, by products` is the static network with its pointwise convolutions so,
that is without that advantage. One image through dynamic convolutions is laid out in channels_last
and has norms in the kernels; `static, channels_last` is the static network whose images somebody
lays out so, and `static, channels_last, folded` that with its norms folded beforehand.

`static, and mixing` is the static network, and the kernels of the dynamic one mixed and nothing
else: what reading four times the weights costs at the least. `static, and all reads` is the static
network by products that also reads everything else that a dynamic convolution has to, by one
operator each: it mixes the kernels, averages the inputs and multiplies the averages by the first
layers of the branches. In the layout of the image it is what nobody gets below operator by
operator.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...cost.config import load_model
from ...layers.attended_conv import Conv2d
from ...layers.dynamic_conv import MixedConv
from ...ops import mix_kernels
from ...plugging import fused
from ..contest import Bar, Contest, Contestant, Entry

_CONFIG = (
    'kronattn_mm::shift_and_balance/classification/imagenet/mobilenetv2-x1.0_{}_4xb64-300e_in1k.py'
)
_STATIC, _SB, _SE, _DYNAMIC = 'static', 'SB', 'SE', 'DyConv'
_PRODUCTS, _MIXING = 'static, by products', 'static, and mixing'
_READS = 'static, and all reads'
_LAST, _FOLDED = 'static, channels_last', 'static, channels_last, folded'
_NAMES = {_STATIC: 'static', _SB: 'sb-3', _SE: 'se-3', _DYNAMIC: 'dyconv'}
_SIDE = 224


class _ByProduct(Conv2d):
    """A plain convolution that is a matrix product where the attended ones are."""

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x) if self.product_pays(x) else self.trunk(x)


def _by_products(model: nn.Module) -> nn.Module:
    """Return a copy whose plain convolutions are run like the trunks of attended ones."""
    copied = copy.deepcopy(model)
    for parent in list(copied.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Conv2d and child.kernel_size == (1, 1):
                conv = _ByProduct(
                    child.in_channels,
                    child.out_channels,
                    child.kernel_size,
                    child.stride,
                    child.padding,
                    child.dilation,
                    child.groups,
                    child.bias is not None,
                )
                conv.load_state_dict(child.state_dict())
                setattr(parent, name, conv)
    return copied


def _pass(model: nn.Module, x: Tensor, further: Callable[[], Any] | None = None) -> Callable:
    def run() -> None:
        with torch.inference_mode():
            model.extract_feat(x)
            if further is not None:
                further()

    return run


def _mixing_alone(model: nn.Module, batch: int) -> Callable[[], Any]:
    """Return a function that mixes all kernels of a dynamic network, with shares that are given."""
    convs = [module for module in model.modules() if isinstance(module, MixedConv)]
    kernels = [
        [conv.weight, *(kernel.weight for kernel in conv.attention.kernels)] for conv in convs
    ]
    shares = kernels[0][0].new_full((batch, len(kernels[0])), 1 / len(kernels[0]))
    return lambda: [mix_kernels(shares, of_conv) for of_conv in kernels]


def _with_reads(plain: nn.Module, dynamic: nn.Module) -> nn.Module:
    """Return a copy of a plain network that reads all that the dynamic one has to."""
    copied = copy.deepcopy(plain)
    modules = dict(copied.named_modules())
    for name, conv in dynamic.named_modules():
        if isinstance(conv, MixedConv):
            modules[name].register_forward_pre_hook(_reading(conv))
    return copied


def _reading(conv: MixedConv) -> Callable[[nn.Module, tuple[Tensor]], None]:
    kernels = [conv.weight, *(kernel.weight for kernel in conv.attention.kernels)]
    shares, first = [1 / len(kernels)] * len(kernels), conv.attention.fc1.weight

    def read(_: nn.Module, inputs: tuple[Tensor]) -> None:
        torch.mv(first, inputs[0].sum((2, 3))[0])
        conv.attention.mix(shares, kernels)

    return read


def _enter(names: Sequence[str], batch: int, fold: bool, device: str) -> Entry:
    x = torch.randn(batch, 3, _SIDE, _SIDE, generator=torch.Generator().manual_seed(0)).to(device)
    models = {}
    for name, of_file in _NAMES.items():
        torch.manual_seed(0)
        model = load_model(_CONFIG.format(of_file))[0].to(device).eval()
        models[name] = fused(model) if fold else model
    models[_PRODUCTS] = _by_products(models[_STATIC]).to(device).eval()
    models[_LAST] = models[_MIXING] = models[_STATIC]
    if _FOLDED in names:
        models[_FOLDED] = fused(models[_STATIC])
    if _READS in names:
        models[_READS] = _with_reads(models[_PRODUCTS], models[_DYNAMIC])
    contestants = []
    for name in names:
        further = _mixing_alone(models[_DYNAMIC], batch) if name == _MIXING else None
        laid_out = name in (_LAST, _FOLDED)
        images = x.contiguous(memory_format=torch.channels_last) if laid_out else x
        run = _pass(models[name], images, further)
        contestants.append(Contestant(name, run, (images, *models[name].parameters())))
    return Entry(contestants)


def _bar(what: str, above: str, below: str, must: float, aim: float) -> Bar:
    return Bar(f'MobileNetV2 x1.0, {what}', above, below, must, aim, at_least=False)


def _contest(
    names: Sequence[str], batch: int, bars: tuple[Bar, ...], fold: bool = False
) -> Contest:
    form = ', batch norms folded' if fold else ''
    return Contest(
        f'mobilenetv2-{"fused" if fold else "inference"}-batch{batch}',
        f'MobileNetV2 x1.0, attention in 50 convolutions, inference, batch {batch}{form}',
        lambda device: _enter(names, batch, fold, device),
        bars,
    )


ATTENDED_CONVS = (
    _contest(
        (_STATIC, _PRODUCTS, _LAST, _SB, _SE, _DYNAMIC),
        8,
        (
            _bar('SB over static, batch 8', _SB, _STATIC, 1.15, 1.05),
            _bar('SB over SE in the same places, batch 8', _SB, _SE, 1.0, 0.9),
            _bar('DynamicConv over static, batch 8', _DYNAMIC, _STATIC, 1.6, 1.3),
        ),
    ),
    _contest(
        (_STATIC, _PRODUCTS, _LAST, _FOLDED, _MIXING, _READS, _SB, _SE, _DYNAMIC),
        1,
        (_bar('DynamicConv over static, batch 1', _DYNAMIC, _STATIC, 1.2, 1.1),),
    ),
    _contest(
        (_STATIC, _PRODUCTS, _SB, _SE, _DYNAMIC),
        8,
        (_bar('SB over static, norms folded, batch 8', _SB, _STATIC, 1.35, 1.2),),
        fold=True,
    ),
)
