"""The head of PSMNet: from volumes to disparities, and its three losses.

Paper: "Pyramid Stereo Matching Network" (arXiv 1803.08669), sections 3.5 to 3.7. The costs of an
hourglass are those of the one before it plus what it finds itself; smooth L1 losses of the three
have the weights 0.5, 0.7 and 1.0.

The authors' code takes the softmax of the costs without the minus sign of equation 1; the sign is
the last convolution's to learn, and here it is the equation's.
"""

from collections.abc import Sequence

import torch
from mmengine.model import BaseModule, Sequential
from torch import Tensor, nn
from torch.nn import functional as F

from ...layers.arguments import finite_number, positive_int
from ...registry import MODELS
from .aggregation import conv_norm_3d
from .cost_volume import soft_argmin
from .features import INIT_CFG

STRIDE = 4  # of the volume's axes, disparity too


@MODELS.register_module()
class DisparityHead(BaseModule):
    """Regress disparities from the volumes of :class:`PSMAggregation`.

    Args:
        channels (int): Channels of the volumes. Defaults to 32.
        max_disparity (int): The disparities are below it; larger ones in the ground truth take no
            part in the loss. A multiple of four. Defaults to 192.
        loss_weights (Sequence[float]): Weight of each volume's loss. Defaults to the paper's.
        init_cfg (dict or list, optional): Initialisation. Defaults to the authors'.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If a number is out of range.
    """

    def __init__(
        self,
        channels: int = 32,
        max_disparity: int = 192,
        loss_weights: Sequence[float] = (0.5, 0.7, 1.0),
        init_cfg: dict | list | None = INIT_CFG,
    ) -> None:
        super().__init__(init_cfg)
        channels = positive_int('channels', channels)
        self.max_disparity = positive_int('max_disparity', max_disparity)
        if max_disparity % STRIDE:
            raise ValueError(
                f'max_disparity must be a multiple of {STRIDE}, got {max_disparity}; the nearest '
                f'is {max(STRIDE, round(max_disparity / STRIDE) * STRIDE)}'
            )
        self.loss_weights = [finite_number('loss_weights', weight) for weight in loss_weights]
        if len(self.loss_weights) != 3:
            raise ValueError(
                f'loss_weights must be three numbers, one for each hourglass, got {loss_weights}'
            )
        for number in (1, 2, 3):
            classifier = Sequential(
                *conv_norm_3d(channels, channels),
                nn.ReLU(inplace=True),
                nn.Conv3d(channels, 1, 3, padding=1, bias=False),
            )
            setattr(self, f'costs{number}', classifier)

    def forward(self, volumes: Sequence[Tensor]) -> list[Tensor]:
        """Return the costs ``(N, 1, D, H, W)`` after each hourglass, on the volumes' grid."""
        total: Tensor | float = 0.0
        costs = []
        for number, volume in enumerate(volumes, 1):
            total = getattr(self, f'costs{number}')(volume) + total
            costs.append(total)
        return costs

    def disparities(self, costs: Tensor, size: tuple[int, int]) -> Tensor:
        """Enlarge costs to the pictures' grid and regress.

        Args:
            costs (Tensor): ``(N, 1, D, H, W)``.
            size (tuple[int, int]): Height and width of the pictures in pixels.

        Returns:
            Tensor: Disparities in pixels of the pictures, ``(N, *size)``.
        """
        # By exactly four and cut, not to the size: a picture's side that is no multiple of four
        # would otherwise be stretched by some pixels, which is some pixels of disparity.
        # Trilinear interpolation, one axis before the other two: on a CPU several times as fast.
        fine = F.interpolate(
            costs, scale_factor=(STRIDE, 1, 1), mode='trilinear', align_corners=False
        )
        fine = F.interpolate(
            fine.squeeze(1), scale_factor=STRIDE, mode='bilinear', align_corners=False
        )
        return soft_argmin(fine[..., : size[0], : size[1]])

    def predict(self, volumes: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
        """Return the disparities ``(N, *size)`` after the last hourglass."""
        return self.disparities(self(volumes)[-1], size)

    def loss(self, volumes: Sequence[Tensor], truth: Tensor) -> dict[str, Tensor]:
        """Return the weighted smooth L1 losses, and the last one's mean error in pixels.

        Args:
            volumes (Sequence[Tensor]): The three volumes.
            truth (Tensor): Disparities ``(N, H, W)`` in pixels, NaN where there is none.

        Returns:
            dict[str, Tensor]: ``loss_disparity1`` to ``3``, and ``EPE`` of the training batch.
        """
        # NaN compares false. No pixel at all gives zeros that the graph hangs on.
        known = (truth >= 0) & (truth < self.max_disparity)
        truth = torch.where(known, truth, 0.0)
        count = known.sum().clamp(min=1)
        losses = {}
        for number, costs in enumerate(self(volumes), 1):
            disparity = self.disparities(costs, truth.shape[-2:])
            errors = F.smooth_l1_loss(disparity, truth, reduction='none') * known
            losses[f'loss_disparity{number}'] = self.loss_weights[number - 1] * errors.sum() / count
        losses['EPE'] = ((disparity.detach() - truth).abs() * known).sum() / count
        return losses
