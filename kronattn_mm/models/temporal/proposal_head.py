"""Temporal proposal network: which stretches of a window may hold an action, whichever.

R-C3D (arXiv 1703.07814), section 3.2, with what it leaves open taken from a public port
(github.com/sunnyxiaohu/R-C3D.pytorch) where one had to choose: two 3 x 3 x 3 convolutions that
halve height and width, the maximum over what is left of them, and at each position in time, for
each anchor, one score and one regression. Deviations: the score is one logit with a sigmoid, of the
same function as two with a softmax; anchors that stick out of the window train too, as windows are
cut out of longer videos.
"""

from collections.abc import Sequence

import torch
from mmengine.model import BaseModule
from mmengine.structures import InstanceData
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, smooth_l1_loss

from ...layers.arguments import positive_int
from ...registry import MODELS
from .segments import (
    anchor_segments,
    assign_segments,
    check_overlaps,
    decode_segments,
    encode_segments,
    sample_segments,
    temporal_nms,
)


@MODELS.register_module()
class TemporalProposalHead(BaseModule):
    """Propose segments.

    Args:
        in_channels (int): Channels of the feature map.
        feat_channels (int): Channels of the two convolutions. Defaults to 512.
        scales (Sequence[float]): Lengths of the anchors in positions of the feature map.
        positive_iou (float): An anchor is positive from this overlap on. Defaults to 0.7.
        negative_iou (float): It is negative below this one. Defaults to 0.3.
        samples (int): Anchors of each window in the loss. Defaults to 64.
        positive_fraction (float): Share of them that may be positive. Defaults to 0.5.
        nms_iou (Sequence[float]): Overlap above which the worse proposal goes, in training and in
            tests. Defaults to (0.8, 0.9).
        max_proposals (Sequence[int]): Most proposals of a window, in training and in tests.
            Defaults to (2000, 300).
        init_cfg (dict or Sequence, optional): Initialisation. Defaults to a normal distribution of
            deviation 0.01.

    Raises:
        ValueError: If there are no scales above 0, or ``negative_iou`` exceeds ``positive_iou``.
    """

    def __init__(
        self,
        in_channels: int,
        feat_channels: int = 512,
        scales: Sequence[float] = (2, 4, 5, 6, 8, 9, 10, 12, 14, 16),
        positive_iou: float = 0.7,
        negative_iou: float = 0.3,
        samples: int = 64,
        positive_fraction: float = 0.5,
        nms_iou: Sequence[float] = (0.8, 0.9),
        max_proposals: Sequence[int] = (2000, 300),
        init_cfg: dict | Sequence[dict] | None = None,
    ) -> None:
        super().__init__(init_cfg or dict(type='Normal', layer='Conv3d', std=0.01))
        if not scales or min(scales) <= 0:
            raise ValueError(f'scales must be numbers above 0, got {scales!r}')
        self.scales = tuple(scales)
        check_overlaps(negative_iou, positive_iou)
        self.positive_iou = positive_iou
        self.negative_iou = negative_iou
        self.samples = positive_int('samples', samples)
        self.positive_fraction = positive_fraction
        self.nms_iou = tuple(nms_iou)
        self.max_proposals = tuple(max_proposals)
        self.conv1 = nn.Conv3d(in_channels, feat_channels, 3, (1, 2, 2), 1)
        self.conv2 = nn.Conv3d(feat_channels, feat_channels, 3, (1, 2, 2), 1)
        self.relu = nn.ReLU(inplace=True)
        self.score = nn.Conv3d(feat_channels, len(scales), 1)
        self.regression = nn.Conv3d(feat_channels, 2 * len(scales), 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Score and regress the anchors of feature maps ``(N, in_channels, T, H, W)``.

        Returns:
            tuple[Tensor, Tensor]: Logits ``(N, T scales)`` and regressions ``(N, T scales, 2)``, in
            the order of :func:`.segments.anchor_segments`.
        """
        x = self.relu(self.conv2(self.relu(self.conv1(x))))
        x = x.amax((3, 4), keepdim=True)
        scores = self.score(x).flatten(2).transpose(1, 2)  # (N, T, scales)
        answers = self.regression(x).flatten(2).transpose(1, 2)  # (N, T, scales 2)
        return scores.flatten(1), answers.unflatten(-1, (-1, 2)).flatten(1, 2)

    def loss_and_proposals(
        self, x: Tensor, stride: int, truths: Sequence[InstanceData]
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Return the losses (R-C3D, equation 1) and the proposals of each window.

        Args:
            x (Tensor): Feature maps, ``(N, in_channels, T, H, W)``.
            stride (int): Frames from one position to the next.
            truths (Sequence[InstanceData]): ``segments`` of each window.
        """
        scores, answers = self(x)
        anchors = anchor_segments(x.shape[2], stride, self.scales, x.device)
        logits, targets, regressed, wanted = [], [], [], []
        for truth, score, answer in zip(truths, scores, answers, strict=True):
            assigned = assign_segments(
                anchors, truth.segments, self.positive_iou, self.negative_iou, best_for_each=True
            )
            chosen = sample_segments(assigned, self.samples, self.positive_fraction)
            logits.append(score[chosen])
            targets.append((assigned[chosen] >= 0).to(score))
            positive = chosen[assigned[chosen] >= 0]
            regressed.append(answer[positive])
            wanted.append(encode_segments(anchors[positive], truth.segments[assigned[positive]]))
        regressed, wanted = torch.cat(regressed), torch.cat(wanted)
        losses = dict(
            loss_proposal_score=binary_cross_entropy_with_logits(
                torch.cat(logits), torch.cat(targets)
            ),
            loss_proposal_segment=smooth_l1_loss(regressed, wanted, reduction='sum')
            / max(len(wanted), 1),
        )
        return losses, self._proposals(scores, answers, anchors, x, stride)

    def predict(self, x: Tensor, stride: int) -> list[Tensor]:
        """Return the proposals of each window in frames, ``(n, 2)``, the best first."""
        scores, answers = self(x)
        anchors = anchor_segments(x.shape[2], stride, self.scales, x.device)
        return self._proposals(scores, answers, anchors, x, stride)

    def _proposals(
        self, scores: Tensor, answers: Tensor, anchors: Tensor, x: Tensor, stride: int
    ) -> list[Tensor]:
        # Proposals are where to look: no gradient goes through their bounds.
        scores, answers = scores.detach(), answers.detach()
        phase = 0 if self.training else 1
        segments = decode_segments(anchors, answers, frames=x.shape[2] * stride)
        proposals = []
        for score, segment in zip(scores, segments, strict=True):
            real = segment[:, 1] - segment[:, 0] >= 1  # at least one frame inside the window
            score, segment = score[real], segment[real]
            kept = temporal_nms(segment, score, self.nms_iou[phase])
            proposals.append(segment[kept[: self.max_proposals[phase]]])
        return proposals
