"""Gradients in the usual memory layout, for what stands before an operator.

torch's batch norm on the CPU (2.13.0) computes a wrong gradient, without a word, for a batch of
one image when the gradient it is given has tokens in rows: a transposed product leaves such a
one, and its strides are those of channels_last but for the batch, whose stride means nothing
there. Convolutions and other norms are not affected. An operator whose product transposes an
input that may come straight from a batch norm passes that input through here.
"""

from typing import Any

import torch
from torch import Tensor


class _ContiguousGradient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.contiguous()


def contiguous_gradient(x: Tensor) -> Tensor:
    """Return ``x``; its gradient will be contiguous.

    Args:
        x (Tensor): Any tensor.

    Returns:
        Tensor: The same values; ``x`` itself where no gradient is asked for.
    """
    if x.requires_grad and torch.is_grad_enabled():
        return _ContiguousGradient.apply(x)
    return x
