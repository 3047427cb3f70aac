"""PSMNet as a model of mmengine's runner.

Paper: "Pyramid Stereo Matching Network" (arXiv 1803.08669); with attention after its last hourglass
it is EA-PSMNet of "Efficient Attention" (arXiv 1812.01243), section 5.1 and Tables 7 and 8. The
parts have the names of other models here, so that tools, hooks and configs find them: ``backbone``
computes features, ``neck`` aggregates costs, ``head`` regresses disparities.
"""

import torch
from mmengine.model import BaseModel
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.nn import functional as F

from ...registry import MODELS


@MODELS.register_module()
class PSMNet(BaseModel):
    """Estimate the disparity of every pixel of the left one of two rectified views.

    Args:
        backbone (dict): Config of :class:`PSMFeatures`, or of it in ``Plugged``.
        neck (dict): Config of :class:`PSMAggregation`, or of it in ``Plugged``.
        head (dict): Config of :class:`DisparityHead`.
        data_preprocessor (dict, optional): Config of :class:`StereoDataPreprocessor`.
        init_cfg (dict or list, optional): Initialisation, such as a trained checkpoint.

    Raises:
        ValueError: If neck and head do not have the same number of disparities.
    """

    def __init__(
        self,
        backbone: dict,
        neck: dict,
        head: dict,
        data_preprocessor: dict | None = None,
        init_cfg: dict | list | None = None,
    ) -> None:
        super().__init__(data_preprocessor, init_cfg)
        self.backbone = MMENGINE_MODELS.build(backbone)
        self.neck = MMENGINE_MODELS.build(neck)
        self.head = MMENGINE_MODELS.build(head)
        planes, disparities = self.neck.planes, self.head.max_disparity
        if 4 * planes != disparities:
            raise ValueError(
                f'the neck has planes={planes} and the head max_disparity={disparities}; on maps '
                f'of a quarter of the size planes must be {disparities // 4}'
            )

    def extract_feat(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the volumes after each hourglass.

        Args:
            inputs (Tensor): Pairs ``(N, 2, 3, H, W)``. Pictures ``(N, 3, H, W)`` are paired with
                themselves, which is how tools look at shapes and cost.

        Returns:
            tuple[Tensor, ...]: Three volumes ``(N, C, D / 4, H / 4, W / 4)``, sides rounded up.
        """
        if inputs.dim() == 4:
            inputs = inputs.unsqueeze(1).expand(-1, 2, -1, -1, -1)
        if inputs.dim() != 5 or inputs.shape[1:3] != (2, 3):
            raise ValueError(f'pairs must be (N, 2, 3, H, W), got {tuple(inputs.shape)}')
        return self.neck(torch.cat([self.backbone(view) for view in inputs.unbind(1)], 1))

    def forward(
        self,
        inputs: Tensor,
        data_samples: list[BaseDataElement] | None = None,
        mode: str = 'tensor',
    ) -> dict[str, Tensor] | list[BaseDataElement] | list[Tensor]:
        """Compute losses, predictions or costs.

        Args:
            inputs (Tensor): Pairs ``(N, 2, 3, H, W)``.
            data_samples (list, optional): One for each pair; ``gt_disparity`` ``(H, W)`` in
                pixels, NaN where it is not known, is what the loss compares with.
            mode (str): ``'loss'``, ``'predict'`` or ``'tensor'``. Defaults to ``'tensor'``.

        Returns:
            dict, list: Losses; the samples with ``pred_disparity`` ``(H, W)`` in pixels; or the
            costs after each hourglass.

        Raises:
            ValueError: If there is no such mode, samples are missing, or a truth is larger than the
                pairs.
        """
        if mode not in ('loss', 'predict', 'tensor'):
            raise ValueError(f"mode must be 'loss', 'predict' or 'tensor', got {mode!r}")
        if mode != 'tensor' and data_samples is None:
            raise ValueError(f'mode={mode!r} needs data_samples, one for each pair')
        volumes = self.extract_feat(inputs)
        size = tuple(inputs.shape[-2:])
        if mode == 'tensor':
            return self.head(volumes)
        if mode == 'loss':
            truth = torch.stack([_padded(sample.gt_disparity, size) for sample in data_samples])
            return self.head.loss(volumes, truth)
        disparities = self.head.predict(volumes, size)
        for sample, disparity in zip(data_samples, disparities, strict=True):
            height, width = sample.img_shape
            sample.pred_disparity = disparity[:height, :width].clone()
        return data_samples


def _padded(disparity: Tensor, size: tuple[int, int]) -> Tensor:
    if disparity.dim() != 2 or disparity.shape[0] > size[0] or disparity.shape[1] > size[1]:
        raise ValueError(
            f'gt_disparity has the shape {tuple(disparity.shape)}, the views {size}; it must be '
            '(H, W) and of the size of the views'
        )
    height, width = disparity.shape
    return F.pad(disparity, (0, size[1] - width, 0, size[0] - height), value=float('nan'))
