"""One image through dynamic depthwise convolutions: maps in channels_last.

A CPU convolves depthwise two to three times as fast where the channels of a position lie side by
side, and the matrix products of pointwise convolutions read and write such maps as they lie. The
network around, batch norms and activations too, takes them as well, so the whole of it is given
its image so, and its results are put back as they would have been. They differ by rounding.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..layers.dynamic_conv import MixedConv
from ..ops.backend import backend, tell
from ..ops.checks import eager_on_cpu
from .convs import Replacement


class ChannelsLast:
    """Stands in for the forward pass of a module, and lays out one image at inference on a CPU.

    It is no pair of hooks since the second has to know what the first did in the same call, and
    calls may run in several threads.

    Args:
        module (nn.Module): The module into which convolutions were put.
        parts (Iterable[Replacement]): These convolutions.
    """

    def __init__(self, module: nn.Module, parts: Iterable[Replacement]) -> None:
        self.module = module
        self.parts = [part for part in parts if _gains(part.conv)]
        # Whoever gave the module a forward pass before keeps it.
        if self.parts and 'forward' not in vars(module):
            module.forward = self.forward

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the module; arguments and result are its own."""
        forward = type(self.module).forward
        if not self._pays(x):
            return forward(self.module, x, *args, **kwargs)
        tell('one image through dynamic convolutions', 'channels_last')
        laid_out = x.contiguous(memory_format=torch.channels_last)
        return _put_back(forward(self.module, laid_out, *args, **kwargs))

    def _pays(self, x: Any) -> bool:
        return (
            isinstance(x, Tensor)
            and x.dim() == 4
            and x.shape[0] == 1
            and not torch.is_grad_enabled()
            and backend() != 'reference'
            and eager_on_cpu(x)
            and x.is_contiguous()
            and any(part.enabled for part in self.parts)
        )


def leave(module: nn.Module) -> None:
    """Give ``module`` its own forward pass again, if another stands in for it."""
    if isinstance(getattr(module.__dict__.get('forward'), '__self__', None), ChannelsLast):
        del module.__dict__['forward']


def _gains(conv: nn.Module) -> bool:
    return isinstance(conv, MixedConv) and conv.depthwise


def _put_back(output: Any) -> Any:
    if isinstance(output, Tensor):
        laid_out = output.dim() == 4 and output.is_contiguous(memory_format=torch.channels_last)
        return output.contiguous() if laid_out else output
    if isinstance(output, dict):
        return {name: _put_back(part) for name, part in output.items()}
    if type(output) in (tuple, list):
        return type(output)(map(_put_back, output))
    return output
