"""One image through dynamic convolutions, at inference on a CPU: less memory, and laid out better.

The kernels of dynamic convolutions are mixed anew for each image, so two things that a plain
network needs a copy of its weights for are free here; both change results by rounding alone.

- *The norm in the kernel.* In eval mode a batch norm is a factor and an offset for each channel.
  The factor multiplies the kernel that has just been mixed, and the convolution begins with the
  offset: a pass over the map and a second map in memory are gone.
- *channels_last.* A CPU convolves depthwise in far less time where the channels of a position lie
  side by side, and the matrix products of pointwise convolutions read and write such maps as they
  lie. The network around takes them too, so all of a plugged module with dynamic depthwise
  convolutions is given its image so, and its results are put back.

Neither can be done by a convolution, which sees its own input and nothing else. Bound methods stand
in for the forward passes of the modules around, as one does for that of a replaced convolution.
They are no pairs of hooks since the second would have to know what the first did in the same call,
and calls may run in several threads.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..layers.dynamic_conv import MixedConv
from ..layers.hooks import has_hooks
from ..ops.backend import tell
from ..ops.mixed_conv import one_image_at_inference
from .convs import Replacement

# Where the forward pass comes from that convolves, normalises and activates, and does nothing else.
_PLAIN = 'mmcv.cnn.bricks.conv_module'
# Forward passes of batch norms that do nothing but normalise.
_NORMS = (_BatchNorm.forward, nn.SyncBatchNorm.forward)


class StandIn:
    """What a module's forward pass is replaced by until it is unplugged.

    Args:
        module (nn.Module): The module; one whose forward pass somebody replaced before keeps that.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        if 'forward' not in vars(module):
            module.forward = self.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module as its class does."""
        return type(self.module).forward(self.module, *args, **kwargs)


class NormInKernel(StandIn):
    """Runs a dynamic convolution and the batch norm after it in one where that takes less time.

    Args:
        module (nn.Module): A ``ConvModule`` of convolution, norm and activation.
        part (Replacement): The convolution in it, a :class:`MixedConv`, and its switch.
    """

    def __init__(self, module: nn.Module, part: Replacement) -> None:
        self.part = part
        super().__init__(module)

    def forward(self, x: Tensor, activate: bool = True, norm: bool = True) -> Tensor:
        """Do what ``ConvModule`` does with these arguments."""
        module = self.module
        following = self._following() if norm and module.with_norm else None
        kernels = None if following is None else self.part.conv.kernels_of_one_image(x)
        if kernels is None:
            return super().forward(x, activate, norm)
        out = self.part.conv.convolve_one_image(x, kernels, following)
        return module.activate(out) if activate and module.with_activation else out

    def _following(self) -> _BatchNorm | None:
        """Return the norm if nobody but the convolution's switch and it have a say here."""
        modules, part = self.module._modules, self.part
        conv, norm = part.conv, modules.get(self.module.norm_name)
        alone = (
            part.enabled
            and part.scale == 1
            and modules['conv'] is conv
            and vars(conv).get('forward') == part.forward
            and getattr(type(norm), 'forward', None) in _NORMS
            and norm.track_running_stats
            and not norm.training
            and 'forward' not in vars(norm)
            and not has_hooks(conv, norm)
        )
        return norm if alone else None


class ChannelsLast(StandIn):
    """Lays out an image for a module with dynamic depthwise convolutions, and its results back.

    Args:
        module (nn.Module): The plugged module.
        parts (Iterable[Replacement]): Its dynamic depthwise convolutions.
    """

    def __init__(self, module: nn.Module, parts: Iterable[Replacement]) -> None:
        self.parts = list(parts)
        super().__init__(module)

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Do what the module does with these arguments."""
        if not self._pays(x):
            return super().forward(x, *args, **kwargs)
        tell('one image through dynamic convolutions', 'channels_last')
        laid_out = x.contiguous(memory_format=torch.channels_last)
        return _put_back(super().forward(laid_out, *args, **kwargs))

    def _pays(self, x: Any) -> bool:
        return (
            isinstance(x, Tensor)
            and x.dim() == 4
            and one_image_at_inference(x)
            and x.is_contiguous()
            and any(part.enabled for part in self.parts)
        )


def arrange(module: nn.Module, replaced: dict[str, Replacement]) -> None:
    """Have one image run so through the dynamic convolutions of ``module``.

    Args:
        module (nn.Module): A plugged module.
        replaced (dict[str, Replacement]): Its replaced convolutions, by their paths.
    """
    dynamic = {path: part for path, part in replaced.items() if isinstance(part.conv, MixedConv)}
    for path, part in dynamic.items():
        parent_path, _, name = path.rpartition('.')
        parent = module.get_submodule(parent_path)
        if name == 'conv' and _is_plain(parent):
            NormInKernel(parent, part)
    depthwise = [part for part in dynamic.values() if part.conv.depthwise]
    if depthwise:
        ChannelsLast(module, depthwise)


def leave(module: nn.Module) -> None:
    """Give ``module`` the forward pass of its class again, if one of ours stands in for it."""
    if isinstance(getattr(vars(module).get('forward'), '__self__', None), StandIn):
        del module.__dict__['forward']


def _is_plain(module: nn.Module) -> bool:
    return (
        type(module).forward.__module__ == _PLAIN
        and module.order == ('conv', 'norm', 'act')
        and module.with_norm
        and not module.with_explicit_padding
        and not getattr(module, 'efficient_conv_bn_eval_forward', None)
    )


def _put_back(output: Any) -> Any:
    if isinstance(output, Tensor):
        laid_out = output.dim() == 4 and output.is_contiguous(memory_format=torch.channels_last)
        return output.contiguous() if laid_out else output
    if isinstance(output, dict):
        return {name: _put_back(part) for name, part in output.items()}
    if type(output) in (tuple, list):
        return type(output)(map(_put_back, output))
    return output
