"""Pooling of proposals to features of one size (R-C3D, section 3.3, 3D RoI pooling).

A proposal of any length is cut into ``output_size[0]`` pieces of time, each frame into
``output_size[1] x output_size[2]`` pieces, and of each the maximum is taken. The proposal is first
widened to whole positions of the feature map, so that even the shortest one has a position.

R-C3D does not say how a proposal is rounded; the pieces are those of adaptive pooling, which may
share a position where they do not divide evenly, as those of RoI pooling do.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import adaptive_max_pool3d


def temporal_roi_pool(
    features: Tensor, segments: Sequence[Tensor], stride: int, output_size: Sequence[int]
) -> Tensor:
    """Take the maxima of the pieces of each proposal.

    Args:
        features (Tensor): Feature maps of the windows, ``(N, C, T, H, W)``.
        segments (Sequence[Tensor]): For each window its proposals in frames, ``(n_i, 2)``.
        stride (int): Frames from one position in time to the next.
        output_size (Sequence[int]): Pieces of time, height and width.

    Returns:
        Tensor: ``(sum of n_i, C, *output_size)``, the first window's first.

    Raises:
        ValueError: If there are not as many sets of proposals as windows.
    """
    if len(segments) != len(features):
        raise ValueError(
            f'{len(features)} windows need as many sets of proposals, got {len(segments)}'
        )
    size = tuple(output_size)
    length = features.shape[2]
    pooled = [features.new_zeros(0, features.shape[1], *size)]
    for feature, proposals in zip(features, segments, strict=True):
        first = (proposals[:, 0] / stride).floor().clamp(0, length - 1).long()
        stop = (proposals[:, 1] / stride).ceil().clamp(max=length).long()
        stop = torch.maximum(stop, first + 1)
        for begin, end in zip(first.tolist(), stop.tolist(), strict=True):
            pooled.append(adaptive_max_pool3d(feature[:, begin:end], size)[None])
    return torch.cat(pooled)
