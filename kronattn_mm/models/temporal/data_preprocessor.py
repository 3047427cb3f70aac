"""From frames as they are stored to what the network takes."""

from collections.abc import Sequence

import torch
from mmengine.model import BaseDataPreprocessor

from ...registry import MODELS


@MODELS.register_module()
class ClipPreprocessor(BaseDataPreprocessor):
    """Stack windows and normalise their colours.

    Args:
        mean (Sequence[float]): Mean of the channels, in the order that the network gets. Defaults
            to (127.5, 127.5, 127.5).
        std (Sequence[float]): What they are divided by. Defaults to (127.5, 127.5, 127.5).
        bgr_to_rgb (bool): Reverse the channels, which are loaded as BGR. Defaults to True.
    """

    def __init__(
        self,
        mean: Sequence[float] = (127.5, 127.5, 127.5),
        std: Sequence[float] = (127.5, 127.5, 127.5),
        bgr_to_rgb: bool = True,
    ) -> None:
        super().__init__()
        self.bgr_to_rgb = bgr_to_rgb
        self.register_buffer('mean', torch.tensor(mean).view(-1, 1, 1, 1), persistent=False)
        self.register_buffer('std', torch.tensor(std).view(-1, 1, 1, 1), persistent=False)

    def forward(self, data: dict, training: bool = False) -> dict:
        """Return ``inputs`` as float ``(N, 3, T, H, W)`` and ``data_samples``.

        Raises:
            ValueError: If the windows of a batch differ in length or size.
        """
        data = self.cast_data(data)
        shapes = {tuple(clip.shape) for clip in data['inputs']}
        if len(shapes) > 1:
            raise ValueError(
                'the windows of a batch must have the same length and size, got '
                + ' and '.join(map(str, sorted(shapes)))
                + '; resize and crop the frames in the pipeline'
            )
        clips = torch.stack(list(data['inputs']))
        if self.bgr_to_rgb:
            clips = clips.flip(1)
        clips = (clips.float() - self.mean) / self.std
        return dict(inputs=clips, data_samples=data.get('data_samples'))
