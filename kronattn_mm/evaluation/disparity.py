"""How far estimated disparities are from the truth.

- EPE, the end-point error: mean of |d - d*| in pixels. Tables 7 and 8 of the efficient-attention
  paper (arXiv 1812.01243) have it.
- 3px: share in percent of the pixels that are more than 3 pixels off, which is usual for Scene Flow
  and KITTI 2012.
- D1: share in percent of the pixels that are more than 3 pixels *and* more than 5 % of the truth
  off, the outliers of KITTI 2015.

All are means over the pixels with a truth, of all pictures together, as KITTI counts; a mean of the
pictures' means differs a little where they do not have equally many such pixels.
"""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.evaluator import BaseMetric
from torch import Tensor

from ..layers.arguments import positive_number
from ..registry import METRICS

_ABSOLUTE, _RELATIVE = 3.0, 0.05


def disparity_errors(prediction: Tensor, truth: Tensor, counted: Tensor) -> dict[str, float]:
    """Return sums over pixels from which the metrics follow.

    Args:
        prediction (Tensor): Disparities in pixels, ``(H, W)``.
        truth (Tensor): The same.
        counted (Tensor): Bool, which pixels count.

    Returns:
        dict[str, float]: ``pixels``, and the sums ``error``, ``far`` (3px) and ``outliers`` (D1).

    Raises:
        ValueError: If the shapes differ, or a prediction that counts is not finite.
    """
    if prediction.shape != truth.shape:
        raise ValueError(
            f'prediction and truth differ in shape: {tuple(prediction.shape)} and '
            f'{tuple(truth.shape)}'
        )
    truth = truth[counted].double()
    error = (prediction[counted].double() - truth).abs()
    if not torch.isfinite(error).all():
        raise ValueError(f'{int((~torch.isfinite(error)).sum())} predictions are not finite')
    far = error > _ABSOLUTE
    return dict(
        pixels=truth.numel(),
        error=float(error.sum()),
        far=int(far.sum()),
        outliers=int((far & (error > _RELATIVE * truth.abs())).sum()),
    )


def disparity_metrics(sums: Sequence[dict[str, float]], suffix: str = '') -> dict[str, float]:
    """Return EPE, 3px and D1 from the sums of several pictures; nothing if no pixel counted."""
    total = {key: sum(part[key] for part in sums) for key in ('pixels', 'error', 'far', 'outliers')}
    if not total['pixels']:
        return {}
    return {
        f'EPE{suffix}': total['error'] / total['pixels'],
        f'3px{suffix}': 100 * total['far'] / total['pixels'],
        f'D1{suffix}': 100 * total['outliers'] / total['pixels'],
    }


@METRICS.register_module()
class DisparityMetric(BaseMetric):
    """EPE, 3px and D1 over all pixels, and over those that both views show where this is known.

    Args:
        max_disparity (float, optional): Count only pixels whose truth is below it, as PSMNet's
            test on Scene Flow does. Defaults to None: all.
        collect_device (str): Where results of several processes meet. Defaults to ``'cpu'``.
        prefix (str, optional): Put before the metrics' names. Defaults to ``'disparity'``.

    Raises:
        TypeError: If ``max_disparity`` is not a number.
        ValueError: If ``max_disparity`` is not above 0; in the end, if no pixel had a truth.
    """

    default_prefix = 'disparity'

    def __init__(
        self,
        max_disparity: float | None = None,
        collect_device: str = 'cpu',
        prefix: str | None = None,
    ) -> None:
        super().__init__(collect_device, prefix)
        self.max_disparity = (
            None if max_disparity is None else positive_number('max_disparity', max_disparity)
        )

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Add up the errors of a batch.

        Args:
            data_batch (Any): Not used.
            data_samples (Sequence[dict]): Each with ``pred_disparity``, ``gt_disparity`` and
                perhaps ``gt_occluded``.
        """
        for sample in data_samples:
            truth, prediction = sample['gt_disparity'].cpu(), sample['pred_disparity'].cpu()
            known = torch.isfinite(truth)
            if self.max_disparity is not None:
                known &= truth < self.max_disparity
            result = dict(all=disparity_errors(prediction, truth, known))
            if 'gt_occluded' in sample:
                seen = known & ~sample['gt_occluded'].cpu()
                result['visible'] = disparity_errors(prediction, truth, seen)
            self.results.append(result)

    def compute_metrics(self, results: list[dict]) -> dict[str, float]:
        """Return the metrics; those with ``_visible`` leave out what the right view lacks."""
        metrics = disparity_metrics([result['all'] for result in results])
        if not metrics:
            raise ValueError('no pixel of the evaluated pairs has a disparity to compare with')
        visible = [result['visible'] for result in results if 'visible' in result]
        return metrics | disparity_metrics(visible, '_visible')
