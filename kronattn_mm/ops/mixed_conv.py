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


def one_image_at_inference(x: Tensor, *weights: Tensor | None) -> bool:
    """Say whether this is one image on a CPU, run eagerly and not differentiated.

    Args:
        x (Tensor): ``(N, C, H, W)``.
        weights (Tensor): What it meets; None, for one that has to be computed first, says no.
    """
    return (
        x.shape[0] == 1
        and not torch.is_grad_enabled()
        and backend() != 'reference'
        and eager_on_cpu(x, *weights)
    )


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
        return mix_in_turn(coefficients.tolist()[0], kernels)[None]
    if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
        # A compiler makes one pass over all kernels of this, which it does not of a product.
        shape = (-1, *[1] * kernels[0].dim())
        return sum(coefficients[:, k].view(shape) * kernel for k, kernel in enumerate(kernels))
    if not isinstance(kernels, Tensor):
        kernels = torch.stack(tuple(kernels))
    return (coefficients @ kernels.flatten(1)).unflatten(1, kernels.shape[1:])


def mix_in_turn(coefficients: Sequence[float], kernels: Sequence[Tensor]) -> Tensor:
    """Return sum_k coefficients[k] kernels[k], each kernel read once; it is not differentiated."""
    mixed = kernels[0] * coefficients[0]
    for k in range(1, len(kernels)):
        mixed.add_(kernels[k], alpha=coefficients[k])
    return mixed


def blend_in_turn(shares: Sequence[float], kernels: Sequence[Tensor]) -> Tensor:
    """Return what :func:`mix_in_turn` does, one operator earlier.

    Args:
        shares (Sequence[float]): At least two, none of them negative; they add up to one.
        kernels (Sequence[Tensor]): As many, of one shape.
    """
    total = shares[0] + shares[1]
    blend = torch.lerp(kernels[0], kernels[1], shares[1] / total if total else 0.0)
    for k in range(2, len(kernels)):
        total += shares[k]
        blend.lerp_(kernels[k], shares[k] / total if total else 0.0)
    return blend


def pointwise_convolution_by_image(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve each image with a 1 x 1 kernel of its own, as one batched matrix product.

    Args:
        x (Tensor): ``(N, C_in, H, W)``.
        weight (Tensor): ``(N, C_out, C_in, 1, 1)``.
        bias (Tensor, optional): ``(N, C_out)``.

    Returns:
        Tensor: ``(N, C_out, H, W)``.
    """
    eager = eager_on_cpu(x, weight)
    of_inputs = (x, weight) if bias is None else (x, weight, bias)
    if eager and x.shape[0] == 1 and not needs_gradient(*of_inputs):
        return pointwise_convolution_of_one(x, weight[0], bias)
    weight, tokens = weight.flatten(2), x.flatten(2)
    start = None if bias is None else bias[:, :, None]
    if eager:
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


def pointwise_convolution_of_one(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve one image with a 1 x 1 kernel, on a CPU, not differentiated.

    Args:
        x (Tensor): ``(1, C_in, H, W)``.
        weight (Tensor): ``(C_out, C_in, 1, 1)``.
        bias (Tensor, optional): ``(C_out,)`` or ``(1, C_out)``.

    Returns:
        Tensor: ``(1, C_out, H, W)``; channels_last if ``x`` is.
    """
    threads = torch.get_num_threads()
    if not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last):
        return _product_of_positions(x, weight, bias, threads)
    channels = weight.shape[0]
    # Each thread multiplies rows of its own and fills memory of its own.
    parts = threads if channels % threads == 0 else 1
    rows = weight.reshape(parts, channels // parts, -1)
    tokens = x.flatten(2).expand(parts, -1, -1)
    if bias is None:
        out = torch.bmm(rows, tokens)
    else:
        out = torch.baddbmm(bias.reshape(parts, -1, 1), rows, tokens)
    return out.view(1, channels, *x.shape[2:])


def _product_of_positions(x: Tensor, weight: Tensor, bias: Tensor | None, threads: int) -> Tensor:
    channels, (height, width) = weight.shape[0], x.shape[2:]
    # The same with the two factors in the other order: each thread has positions of its own.
    parts = threads if height * width % threads == 0 else 1
    tokens = x.permute(0, 2, 3, 1).view(parts, height * width // parts, -1)
    columns = weight.reshape(1, channels, -1).transpose(1, 2).expand(parts, -1, -1)
    if bias is None:
        out = torch.bmm(tokens, columns)
    else:
        out = torch.baddbmm(bias.reshape(1, 1, -1), tokens, columns)
    return out.view(1, height, width, channels).permute(0, 3, 1, 2)
