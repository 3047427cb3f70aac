"""Segments of time: overlap, suppression, anchors, and the regression from one to another.

R-C3D, "R-C3D: Region Convolutional 3D Network for Temporal Activity Detection" (arXiv 1703.07814),
section 3. A segment is a pair (start, end), in whatever unit; the tensors are ``(n, 2)``.

    overlap            tIoU(a, b) = |a intersected with b| / |a united with b|
    regression         delta_c = (c* - c) / l,   delta_l = log(l* / l)            (equation 2)

with centre c and length l of an anchor or proposal, c* and l* those of the true segment.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.ops import batched_nms

# A regressed segment is at most that many times as long as what it was regressed from.
_LONGEST_STRETCH = 16.0


def temporal_iou(first: Tensor, second: Tensor) -> Tensor:
    """Return the overlap of each segment with each other one.

    Args:
        first (Tensor): Segments, ``(n, 2)``.
        second (Tensor): Segments, ``(m, 2)``.

    Returns:
        Tensor: Length of the intersection divided by that of the union, ``(n, m)``; 0 where both
        have no length.
    """
    start = torch.maximum(first[:, None, 0], second[None, :, 0])
    end = torch.minimum(first[:, None, 1], second[None, :, 1])
    common = (end - start).clamp(min=0)
    lengths = (first[:, 1] - first[:, 0])[:, None] + (second[:, 1] - second[:, 0])[None]
    return common / (lengths - common).clamp(min=1e-6)


def temporal_nms(
    segments: Tensor, scores: Tensor, iou_threshold: float, labels: Tensor | None = None
) -> Tensor:
    """Keep the best of those that overlap by more than ``iou_threshold``.

    A segment is a box of height 1, whose overlap in the plane is that of the segments in time.

    Args:
        segments (Tensor): ``(n, 2)``.
        scores (Tensor): ``(n,)``.
        iou_threshold (float): Overlap above which the one with the lower score goes.
        labels (Tensor, optional): Classes, ``(n,)``; only segments of the same class suppress each
            other. Defaults to None, one class.

    Returns:
        Tensor: Indices of those that stay, the highest score first.
    """
    if labels is None:
        labels = torch.zeros_like(scores, dtype=torch.long)
    zeros = torch.zeros_like(scores)
    boxes = torch.stack([segments[:, 0], zeros, segments[:, 1], zeros + 1], 1)
    return batched_nms(boxes.float(), scores.float(), labels, iou_threshold)


def anchor_segments(
    positions: int, stride: int, scales: Sequence[float], device: torch.device | str = 'cpu'
) -> Tensor:
    """Return the anchors of a feature map: at each position one of each scale.

    Args:
        positions (int): Length T of the feature map in time.
        stride (int): Frames from one position to the next.
        scales (Sequence[float]): Lengths of anchors in positions.
        device (torch.device or str): Where they are made. Defaults to ``'cpu'``.

    Returns:
        Tensor: ``(T len(scales), 2)`` in frames, the scales of the first position first. Centres
        are those of the frames that a position stands for, (t + 1/2) stride.
    """
    centres = (torch.arange(positions, device=device) + 0.5) * stride
    halves = torch.tensor(scales, dtype=torch.float32, device=device) * stride / 2
    return torch.stack([centres[:, None] - halves, centres[:, None] + halves], -1).flatten(0, 1)


def encode_segments(origins: Tensor, targets: Tensor, stds: Sequence[float] = (1, 1)) -> Tensor:
    """Return what regression has to answer for ``origins`` to become ``targets`` (equation 2).

    Args:
        origins (Tensor): Anchors or proposals, ``(n, 2)``, of lengths above 0.
        targets (Tensor): True segments, ``(n, 2)``, of lengths above 0.
        stds (Sequence[float]): Both answers are divided by these. Defaults to 1.

    Returns:
        Tensor: ``(n, 2)``: shift of the centre in lengths of the origin, and the logarithm of the
        factor of the length.
    """
    length = origins[:, 1] - origins[:, 0]
    shift = (targets.sum(1) - origins.sum(1)) / 2 / length
    factor = (targets[:, 1] - targets[:, 0]) / length
    return torch.stack([shift, factor.log()], 1) / origins.new_tensor(stds)


def decode_segments(
    origins: Tensor, answers: Tensor, stds: Sequence[float] = (1, 1), frames: float | None = None
) -> Tensor:
    """Undo :func:`encode_segments`.

    Args:
        origins (Tensor): Anchors or proposals, ``(..., 2)``.
        answers (Tensor): What regression answered, ``(..., 2)``.
        stds (Sequence[float]): As when encoding. Defaults to 1.
        frames (float, optional): Segments are cut to the interval from 0 to this. Defaults to None.

    Returns:
        Tensor: Segments, ``(..., 2)``, at most 16 times as long as their origins.
    """
    answers = answers * answers.new_tensor(stds)
    length = origins[..., 1] - origins[..., 0]
    centre = origins.sum(-1) / 2 + answers[..., 0] * length
    half = length * answers[..., 1].clamp(max=math.log(_LONGEST_STRETCH)).exp() / 2
    segments = torch.stack([centre - half, centre + half], -1)
    return segments if frames is None else segments.clamp(0, frames)


def assign_segments(
    candidates: Tensor,
    truths: Tensor,
    positive_iou: float,
    negative_iou: float,
    best_for_each: bool,
) -> Tensor:
    """Say which true segment each anchor or proposal stands for (R-C3D, sections 3.2 and 3.3).

    Args:
        candidates (Tensor): Anchors or proposals, ``(n, 2)``.
        truths (Tensor): True segments, ``(m, 2)``; there may be none.
        positive_iou (float): A candidate is positive from this overlap on.
        negative_iou (float): It is negative below this overlap, and of no use between the two.
        best_for_each (bool): The candidates that overlap most with a true segment are positive
            too, whatever that overlap (but not where there is none).

    Returns:
        Tensor: For each candidate the index of its true segment, -1 for negative ones, -2 for
        those of no use; ``(n,)``.
    """
    assigned = torch.full((len(candidates),), -1, dtype=torch.long, device=candidates.device)
    if not len(truths):
        return assigned
    overlaps = temporal_iou(candidates, truths)
    best, index = overlaps.max(1)
    assigned[best >= negative_iou] = -2
    if best_for_each:
        most = overlaps.max(0).values
        ties = (overlaps == most) & (most > 0)
        rows = ties.any(1)
        assigned[rows] = ties[rows].long().argmax(1)
    positive = best >= positive_iou
    assigned[positive] = index[positive]
    return assigned


def sample_segments(assigned: Tensor, number: int, positive_fraction: float) -> Tensor:
    """Draw the candidates that a loss is made of.

    Args:
        assigned (Tensor): From :func:`assign_segments`, ``(n,)``.
        number (int): How many at most.
        positive_fraction (float): Which share of them may be positive; negative ones fill up.

    Returns:
        Tensor: Indices, positive ones first.
    """
    positive = _draw((assigned >= 0).nonzero().flatten(), round(number * positive_fraction))
    negative = _draw((assigned == -1).nonzero().flatten(), number - len(positive))
    return torch.cat([positive, negative])


def check_overlaps(negative_iou: float, positive_iou: float) -> None:
    """Raise ValueError unless 0 <= ``negative_iou`` <= ``positive_iou`` <= 1."""
    if not 0 <= negative_iou <= positive_iou <= 1:
        raise ValueError(
            'overlaps must satisfy 0 <= negative_iou <= positive_iou <= 1, got '
            f'negative_iou={negative_iou} and positive_iou={positive_iou}'
        )


def _draw(indices: Tensor, number: int) -> Tensor:
    if len(indices) <= number:
        return indices
    return indices[torch.randperm(len(indices), device=indices.device)[:number]]
