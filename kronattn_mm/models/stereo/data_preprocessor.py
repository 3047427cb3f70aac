"""Pairs of views for PSMNet: colours in order, normalised, padded to one size."""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.model import BaseDataPreprocessor
from torch.nn import functional as F

from ...layers.arguments import positive_int
from ...registry import MODELS


@MODELS.register_module()
class StereoDataPreprocessor(BaseDataPreprocessor):
    """Normalise both views in the same way and pad pairs at the right and at the bottom.

    Args:
        mean (Sequence[float]): Of red, green and blue. Defaults to ImageNet's, as in PSMNet.
        std (Sequence[float]): Of red, green and blue. Defaults to ImageNet's.
        pad_size_divisor (int): Height and width become multiples of it. Defaults to 16.

    Raises:
        ValueError: If there are not three means and deviations.
    """

    def __init__(
        self,
        mean: Sequence[float] = (123.675, 116.28, 103.53),
        std: Sequence[float] = (58.395, 57.12, 57.375),
        pad_size_divisor: int = 16,
    ) -> None:
        super().__init__()
        for name, values in (('mean', mean), ('std', std)):
            if len(values) != 3:
                raise ValueError(f'{name} must be three numbers, got {values!r}')
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)
        self.pad_size_divisor = positive_int('pad_size_divisor', pad_size_divisor)

    def forward(self, data: dict[str, Any], training: bool = False) -> dict[str, Any]:
        """Collate a batch.

        Args:
            data (dict): ``inputs``, a list of pairs ``(2, 3, H, W)``, left view first, blue first,
                0 to 255; ``data_samples``, a list.
            training (bool): Not used: both modes are alike. Defaults to False.

        Returns:
            dict: ``inputs`` as one tensor ``(N, 2, 3, H, W)``; each sample's metainfo gets
            ``batch_input_shape``.
        """
        data = self.cast_data(data)
        pairs = [(pair.flip(1).float() - self.mean) / self.std for pair in data['inputs']]
        divisor = self.pad_size_divisor
        height, width = (
            -(-max(pair.shape[axis] for pair in pairs) // divisor) * divisor for axis in (-2, -1)
        )
        inputs = torch.stack(
            [F.pad(pair, (0, width - pair.shape[-1], 0, height - pair.shape[-2])) for pair in pairs]
        )
        samples = data.get('data_samples')
        for sample in samples or ():
            sample.set_metainfo(dict(batch_input_shape=(height, width)))
        return dict(inputs=inputs, data_samples=samples)
