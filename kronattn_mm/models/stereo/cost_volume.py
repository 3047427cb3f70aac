"""The two formulae of stereo matching by regression, in plain torch.

Paper: "Pyramid Stereo Matching Network" (arXiv 1803.08669), section 3.4 (the volume) and 3.6,
equation 1 (the regression, from GC-Net, arXiv 1703.04309).
"""

import torch
from torch import Tensor


def concatenation_volume(left: Tensor, right: Tensor, planes: int) -> Tensor:
    """Lay the right view's features beside the left view's, moved by 0 to ``planes - 1`` columns.

    ::

        volume[:, :, d, y, x] = (left[:, :, y, x], right[:, :, y, x - d])

    and zero where x < d: what lies there in the left view is outside of the right one.

    Args:
        left (Tensor): Features of the left view, ``(N, C, H, W)``.
        right (Tensor): Features of the right view, of the same shape.
        planes (int): Number of disparities D, in columns of these maps.

    Returns:
        Tensor: ``(N, 2 * C, D, H, W)``.

    Raises:
        ValueError: If the two shapes differ or ``planes`` is smaller than one.
    """
    if left.shape != right.shape:
        raise ValueError(
            f'both views must have the same shape, got {tuple(left.shape)} and {tuple(right.shape)}'
        )
    if planes < 1:
        raise ValueError(f'planes must be at least 1, got {planes}')
    batch, channels, height, width = left.shape
    volume = left.new_zeros(batch, 2 * channels, planes, height, width)
    for plane in range(min(planes, width)):
        volume[:, :channels, plane, :, plane:] = left[..., plane:]
        volume[:, channels:, plane, :, plane:] = right[..., : width - plane]
    return volume


def soft_argmin(costs: Tensor) -> Tensor:
    """Return the mean disparity under the distribution that the costs define (equation 1).

    ::

        d(y, x) = sum_d d * softmax_d(-cost[d, y, x])

    It is differentiable and finer than the planes; where two disparities are about as likely, it
    lies between them.

    Args:
        costs (Tensor): ``(N, D, H, W)``, small where a disparity fits.

    Returns:
        Tensor: Disparities ``(N, H, W)`` from 0 to D - 1.
    """
    # The sum over many planes is taken in float32 whatever autocast has made of the costs.
    shares = torch.softmax(-costs.float(), 1)
    planes = torch.arange(costs.shape[1], device=costs.device, dtype=shares.dtype)
    return torch.einsum('ndhw,d->nhw', shares, planes)
