"""Convolution with a kernel of its own for each image, mixed from a few kernels.

Papers: "Dynamic Convolution" (arXiv 1912.03458) and "CondConv" (arXiv 1904.04971): the kernel of
image b is sum_k pi[b, k] W_k. Both say that libraries have no convolution for that once a batch
holds more than one image; here the batch becomes the groups of one grouped convolution, or, for
1 x 1 kernels, one batched matrix product.

Cost beside the convolution, for one image: K times the weights of the convolution, for mixing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .backend import backend
from .checks import eager_on_cpu, needs_gradient


def mix_kernels(coefficients: Tensor, kernels: Tensor | Sequence[Tensor]) -> Tensor:
    """Return sum_k coefficients[b, k] kernels[k].

    Args:
        coefficients (Tensor): ``(N, K)``.
        kernels (Tensor or Sequence[Tensor]): K weights or biases of one shape, or ``(K, *)``.

    Returns:
        Tensor: ``(N, *)``.

    Raises:
        ValueError: If the numbers of kernels differ.
    """
    if coefficients.dim() != 2 or coefficients.shape[1] != len(kernels):
        raise ValueError(
            f'coefficients must be (N, {len(kernels)}) for {len(kernels)} '
            f'kernels, got {tuple(coefficients.shape)}'
        )
    if (
        backend() != 'reference'
        and eager_on_cpu(coefficients, kernels[0])
        and coefficients.shape[0] == 1
        and not needs_gradient(coefficients, *kernels)
    ):
        # For one image, putting the kernels side by side would take longer than the sum.
        first, *others = coefficients.tolist()[0]
        mixed = kernels[0] * first
        for share, kernel in zip(others, kernels[1:], strict=True):
            mixed.add_(kernel, alpha=share)
        return mixed[None]
    if not isinstance(kernels, Tensor):
        kernels = torch.stack(tuple(kernels))
    return (coefficients @ kernels.flatten(1)).unflatten(1, kernels.shape[1:])


def pointwise_convolution_by_image(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve each image with a 1 x 1 kernel of its own, as one batched matrix product.

    Args:
        x (Tensor): ``(N, C_in, H, W)``.
        weight (Tensor): ``(N, C_out, C_in, 1, 1)``.
        bias (Tensor, optional): ``(N, C_out)``.

    Returns:
        Tensor: ``(N, C_out, H, W)``.
    """
    weight, tokens = weight.flatten(2), x.flatten(2)
    start = None if bias is None else bias[:, :, None]
    if eager_on_cpu(x, weight):
        if torch.get_num_threads() == 1:
            out = torch.bmm(weight, tokens)
            return (out if start is None else out.add_(start)).unflatten(2, x.shape[2:])
        if start is None:
            # All threads share in filling fresh memory, where the product alone leaves it to one.
            start = x.new_zeros(1, 1, 1)
        if x.shape[0] == 1:
            product = torch.addmm(start[0], weight[0], tokens[0])
            return product.view(1, -1, *x.shape[2:])
    if start is None:
        out = torch.bmm(weight, tokens)
    else:
        out = torch.baddbmm(start, weight, tokens)
    return out.unflatten(2, x.shape[2:])
