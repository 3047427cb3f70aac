"""R-C3D: proposals in time, then what each of them shows.

"R-C3D: Region Convolutional 3D Network for Temporal Activity Detection" (arXiv 1703.07814), with a
residual network in the place of C3D as in table 6 of "Efficient Attention" (arXiv 1812.01243):

    window  ->  stem, stages 1 to 3  ->  feature map  ->  proposals
                                              |              |
                                              +-> RoI pooling +-> stage 4, mean  ->  classes, bounds

The losses of proposals and of classes are added (R-C3D, equation 1, with lambda = 1), and all is
trained at once. Where the last stage belongs is not said in the efficient-attention paper; in a
public port (github.com/sunnyxiaohu/R-C3D.pytorch) it runs on pooled proposals, as drawn, so that
attention after ``res3`` sees the whole window and attention after ``res4`` one proposal. With
``shared_stages=4`` all of the network runs on the window, and both see all of it.
"""

from collections.abc import Sequence

from mmengine.model import BaseModel
from mmengine.registry import MODELS as MMENGINE_MODELS
from torch import Tensor

from ...registry import MODELS
from .roi_pool import temporal_roi_pool
from .structures import SegmentSample


@MODELS.register_module()
class RC3D(BaseModel):
    """R-C3D over windows of frames.

    Args:
        backbone (dict): Config of a :class:`.resnet3d.ResNet3d`, plugged or not.
        proposal_head (dict): Config of a :class:`.proposal_head.TemporalProposalHead`.
        segment_head (dict): Config of a :class:`.segment_head.SegmentHead`.
        shared_stages (int): Stages of the backbone that run on the whole window; the rest runs on
            each proposal. Defaults to 3.
        pooled_size (Sequence[int]): Pieces of time, height and width into which a proposal is
            pooled. Defaults to (16, 4, 4).
        data_preprocessor (dict, optional): Config of a
            :class:`.data_preprocessor.ClipPreprocessor`. Defaults to None.
        init_cfg (dict or Sequence, optional): Initialisation. Defaults to None, that of the parts.

    Raises:
        ValueError: If ``shared_stages`` is not a number of stages of the backbone.
    """

    def __init__(
        self,
        backbone: dict,
        proposal_head: dict,
        segment_head: dict,
        shared_stages: int = 3,
        pooled_size: Sequence[int] = (16, 4, 4),
        data_preprocessor: dict | None = None,
        init_cfg: dict | Sequence[dict] | None = None,
    ) -> None:
        super().__init__(data_preprocessor, init_cfg)
        self.backbone = MMENGINE_MODELS.build(backbone)
        self.proposal_head = MMENGINE_MODELS.build(proposal_head)
        self.segment_head = MMENGINE_MODELS.build(segment_head)
        stages = len(self.backbone.res_layers)
        if shared_stages not in range(1, stages + 1):
            raise ValueError(
                f'shared_stages must be from 1 to {stages}, the stages of the backbone, '
                f'got {shared_stages!r}'
            )
        self.shared_stages = shared_stages
        self.stride = self.backbone.temporal_stride(shared_stages)
        self.pooled_size = tuple(pooled_size)

    def forward(
        self,
        inputs: Tensor,
        data_samples: Sequence[SegmentSample] | None = None,
        mode: str = 'tensor',
    ) -> dict[str, Tensor] | list[SegmentSample] | Tensor:
        """Compute losses, predictions or the feature map of windows.

        Args:
            inputs (Tensor): Windows, ``(N, 3, T, H, W)``; T a multiple of the backbone's stride.
            data_samples (Sequence[SegmentSample], optional): One for each window.
            mode (str): ``'loss'``, ``'predict'`` (samples with ``pred_instances``) or ``'tensor'``
                (feature map).

        Raises:
            ValueError: If the mode is another one, or the windows' length does not fit.
        """
        if inputs.shape[2] % self.stride:
            raise ValueError(
                f'windows must have a multiple of {self.stride} frames, the stride of the '
                f'backbone in time, got {inputs.shape[2]}'
            )
        features = self.backbone(inputs, last_stage=self.shared_stages)
        if mode == 'tensor':
            return features
        if mode == 'loss':
            return self._loss(features, data_samples)
        if mode == 'predict':
            return self._predict(features, inputs.shape[2], data_samples)
        raise ValueError(f"mode must be 'loss', 'predict' or 'tensor', got {mode!r}")

    def _loss(self, features: Tensor, samples: Sequence[SegmentSample]) -> dict[str, Tensor]:
        truths = [sample.gt_instances for sample in samples]
        losses, proposals = self.proposal_head.loss_and_proposals(features, self.stride, truths)
        chosen, labels, answers = self.segment_head.sample(proposals, truths)
        pooled = self._proposal_features(features, chosen)
        return losses | self.segment_head.loss(pooled, labels, answers)

    def _predict(
        self, features: Tensor, frames: int, samples: Sequence[SegmentSample]
    ) -> list[SegmentSample]:
        proposals = self.proposal_head.predict(features, self.stride)
        pooled = self._proposal_features(features, proposals)
        predictions = self.segment_head.predict(pooled, proposals, frames)
        for sample, prediction in zip(samples, predictions, strict=True):
            sample.pred_instances = prediction
        return list(samples)

    def _proposal_features(self, features: Tensor, proposals: Sequence[Tensor]) -> Tensor:
        """Return the features of all proposals, ``(sum of n_i, C)``."""
        pooled = temporal_roi_pool(features, proposals, self.stride, self.pooled_size)
        if len(pooled) and self.shared_stages < len(self.backbone.res_layers):
            pooled = self.backbone(pooled, first_stage=self.shared_stages + 1)
        elif not len(pooled):
            return features.new_zeros(0, self.backbone.stage_channels[-1])
        return pooled.mean((2, 3, 4))
