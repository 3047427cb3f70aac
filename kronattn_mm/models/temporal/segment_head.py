"""Classification of proposals and refinement of their boundaries.

R-C3D (arXiv 1703.07814), section 3.3: from the features of a pooled proposal, scores of the classes
and of the background, and for each class a regression of centre and length.
"""

from collections.abc import Sequence

import torch
from mmengine.model import BaseModule
from mmengine.structures import InstanceData
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, smooth_l1_loss

from ...layers.arguments import positive_int
from ...registry import MODELS
from .segments import (
    assign_segments,
    check_overlaps,
    decode_segments,
    encode_segments,
    sample_segments,
    temporal_nms,
)


@MODELS.register_module()
class SegmentHead(BaseModule):
    """Say what a proposal shows, and from when to when.

    Args:
        in_channels (int): Features of a proposal.
        num_classes (int): Classes, without the background, which is the last score.
        positive_iou (float): A proposal shows an action from this overlap on. Defaults to 0.5.
        negative_iou (float): It shows background below this one. Defaults to 0.5.
        samples (int): Proposals of each window in the loss. Defaults to 128.
        positive_fraction (float): Share of them that may be positive. Defaults to 0.5.
        target_stds (Sequence[float]): Answers of the regression are divided by these. Defaults to
            (0.1, 0.2).
        score_threshold (float): Predictions below this probability go. Defaults to 0.005.
        nms_iou (float): Overlap with a better prediction of the same class above which one goes.
            Defaults to 0.4.
        max_predictions (int): Most predictions of a window. Defaults to 100.
        dropout (float): Share of the features that is dropped in training. Defaults to 0.
        init_cfg (dict or Sequence, optional): Initialisation. Defaults to normal distributions of
            deviation 0.01 for the scores and 0.001 for the regression.

    Raises:
        TypeError: If a number is none.
        ValueError: If a number is below 1, or ``negative_iou`` exceeds ``positive_iou``.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        positive_iou: float = 0.5,
        negative_iou: float = 0.5,
        samples: int = 128,
        positive_fraction: float = 0.5,
        target_stds: Sequence[float] = (0.1, 0.2),
        score_threshold: float = 0.005,
        nms_iou: float = 0.4,
        max_predictions: int = 100,
        dropout: float = 0.0,
        init_cfg: dict | Sequence[dict] | None = None,
    ) -> None:
        super().__init__(
            init_cfg
            or dict(
                type='Normal',
                layer='Linear',
                std=0.01,
                override=dict(type='Normal', name='regression', std=0.001),
            )
        )
        self.num_classes = positive_int('num_classes', num_classes)
        check_overlaps(negative_iou, positive_iou)
        self.positive_iou = positive_iou
        self.negative_iou = negative_iou
        self.samples = positive_int('samples', samples)
        self.positive_fraction = positive_fraction
        self.target_stds = tuple(target_stds)
        self.score_threshold = score_threshold
        self.nms_iou = nms_iou
        self.max_predictions = positive_int('max_predictions', max_predictions)
        self.dropout = nn.Dropout(dropout)
        self.score = nn.Linear(in_channels, num_classes + 1)
        self.regression = nn.Linear(in_channels, 2 * num_classes)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Map features ``(n, in_channels)`` to logits ``(n, classes + 1)`` and regressions.

        Returns:
            tuple[Tensor, Tensor]: The second is ``(n, classes, 2)``.
        """
        features = self.dropout(features)
        return self.score(features), self.regression(features).unflatten(1, (self.num_classes, 2))

    def sample(
        self, proposals: Sequence[Tensor], truths: Sequence[InstanceData]
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Choose the proposals to learn from; the true segments are proposals too.

        Args:
            proposals (Sequence[Tensor]): Of each window, ``(n, 2)``.
            truths (Sequence[InstanceData]): ``segments`` and ``labels`` of each window.

        Returns:
            tuple[list[Tensor], Tensor, Tensor]: Chosen proposals of each window; the class of each
            of them all, ``num_classes`` for background, ``(n,)``; and what regression has to
            answer, ``(n, 2)``, zeros for background.
        """
        chosen, labels, answers = [], [], []
        for proposal, truth in zip(proposals, truths, strict=True):
            proposal = torch.cat([truth.segments, proposal])
            assigned = assign_segments(
                proposal, truth.segments, self.positive_iou, self.negative_iou, best_for_each=False
            )
            index = sample_segments(assigned, self.samples, self.positive_fraction)
            proposal, assigned = proposal[index], assigned[index]
            positive = assigned >= 0
            label = torch.full_like(assigned, self.num_classes)
            label[positive] = truth.labels[assigned[positive]]
            answer = torch.zeros_like(proposal)
            answer[positive] = encode_segments(
                proposal[positive], truth.segments[assigned[positive]], self.target_stds
            )
            chosen.append(proposal)
            labels.append(label)
            answers.append(answer)
        return chosen, torch.cat(labels), torch.cat(answers)

    def loss(self, features: Tensor, labels: Tensor, answers: Tensor) -> dict[str, Tensor]:
        """Return the losses (R-C3D, equation 1) for what :meth:`sample` chose."""
        logits, regressed = self(features)
        positive = (labels < self.num_classes).nonzero().flatten()
        regressed = regressed[positive, labels[positive]]
        return dict(
            # Not the mean: of windows without a truth and a proposal that would be no number.
            loss_class=cross_entropy(logits, labels, reduction='sum') / max(len(labels), 1),
            loss_segment=smooth_l1_loss(regressed, answers[positive], reduction='sum')
            / max(len(positive), 1),
        )

    def predict(
        self, features: Tensor, proposals: Sequence[Tensor], frames: int
    ) -> list[InstanceData]:
        """Return the predictions of each window.

        Args:
            features (Tensor): Of all proposals, ``(sum of n_i, in_channels)``.
            proposals (Sequence[Tensor]): Of each window, ``(n_i, 2)``.
            frames (int): Length of the windows.

        Returns:
            list[InstanceData]: ``segments`` ``(n, 2)`` in frames, ``scores`` and ``labels``
            ``(n,)``, the best first.
        """
        logits, answers = self(features)
        numbers = [len(proposal) for proposal in proposals]
        results = []
        for probability, answer, proposal in zip(
            logits.softmax(1).split(numbers), answers.split(numbers), proposals, strict=True
        ):
            segments = decode_segments(proposal[:, None], answer, self.target_stds, frames)
            scores = probability[:, :-1]
            real = segments[..., 1] - segments[..., 0] >= 1
            rows, labels = ((scores >= self.score_threshold) & real).nonzero(as_tuple=True)
            segments, scores = segments[rows, labels], scores[rows, labels]
            kept = temporal_nms(segments, scores, self.nms_iou, labels)[: self.max_predictions]
            results.append(
                InstanceData(segments=segments[kept], scores=scores[kept], labels=labels[kept])
            )
        return results
