"""Convolution with a kernel of its own for each image, mixed from a few kernels.

Papers: "Dynamic Convolution" (arXiv 1912.03458) and "CondConv" (arXiv 1904.04971): the kernel of
image b is sum_k pi[b, k] W_k. Both say that libraries have no convolution for that once a batch
holds more than one image; here the batch becomes the groups of one grouped convolution, or, for
1 x 1 kernels, one batched matrix product.

Cost beside the convolution, for one image: K times the weights of the convolution, for mixing.
"""

import torch
from torch import Tensor


def mix_kernels(coefficients: Tensor, kernels: Tensor) -> Tensor:
    """Return sum_k coefficients[b, k] kernels[k].

    Args:
        coefficients (Tensor): ``(N, K)``.
        kernels (Tensor): ``(K, *)``, weights or biases.

    Returns:
        Tensor: ``(N, *)``.

    Raises:
        ValueError: If the numbers of kernels differ.
    """
    if coefficients.dim() != 2 or coefficients.shape[1] != kernels.shape[0]:
        raise ValueError(
            f'coefficients must be (N, {kernels.shape[0]}) for {kernels.shape[0]} '
            f'kernels, got {tuple(coefficients.shape)}'
        )
    return (
        (coefficients @ kernels.flatten(1)).unflatten(1, kernels.shape[1:])
        if kernels.dim() > 2
        else coefficients @ kernels
    )


def pointwise_convolution_by_image(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve each image with a 1 x 1 kernel of its own, as one batched matrix product.

    Args:
        x (Tensor): ``(N, C_in, H, W)``.
        weight (Tensor): ``(N, C_out, C_in, 1, 1)``.
        bias (Tensor, optional): ``(N, C_out)``.

    Returns:
        Tensor: ``(N, C_out, H, W)``.
    """
    out = torch.bmm(weight.flatten(2), x.flatten(2))
    if bias is not None:
        out = out + bias[:, :, None]
    return out.unflatten(2, x.shape[2:])
