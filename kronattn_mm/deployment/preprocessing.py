"""What a data preprocessor does with the values of an image, as a module that can be exported."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

# What the preprocessors of mmdet, mmseg and mmpretrain call their exchange of first and last
# channel, in this order.
_EXCHANGES = ('_channel_conversion', 'channel_conversion', 'to_rgb')


class Normalization(nn.Module):
    """Exchange the channels if the model wants another order, subtract a mean, divide.

    Args:
        exchange (bool): Turn BGR, in which OpenMMLab's pipelines read, into RGB.
        mean (Sequence[float]): One value for each channel, or none.
        std (Sequence[float]): One value for each channel, or none.
    """

    def __init__(self, exchange: bool, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.exchange = exchange
        self.register_buffer('mean', torch.tensor(list(mean)).view(-1, 1, 1), persistent=False)
        self.register_buffer('std', torch.tensor(list(std)).view(-1, 1, 1), persistent=False)

    @classmethod
    def of(cls, preprocessor: nn.Module) -> 'Normalization':
        """Read what a data preprocessor of mmdet, mmseg or mmpretrain was told to do."""
        exchange = any(getattr(preprocessor, name, False) for name in _EXCHANGES)
        if not getattr(preprocessor, '_enable_normalize', False):
            return cls(exchange, [], [])
        mean, std = (getattr(preprocessor, name).flatten().tolist() for name in ('mean', 'std'))
        return cls(exchange, mean, std)

    def forward(self, image: Tensor) -> Tensor:
        """Return what the network takes for ``image`` ``(N, C, H, W)``, values 0 to 255."""
        if self.exchange:
            image = image[:, [2, 1, 0]]
        return (image - self.mean) / self.std if self.mean.numel() else image

    def as_dict(self) -> dict[str, Any]:
        """Say what is done, fit for JSON."""
        return dict(
            order='RGB' if self.exchange else 'BGR',
            mean=self.mean.flatten().tolist(),
            std=self.std.flatten().tolist(),
        )
