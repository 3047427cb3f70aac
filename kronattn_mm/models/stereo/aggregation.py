"""Cost aggregation of PSMNet: the cost volume and three stacked 3-D hourglasses.

Paper: "Pyramid Stereo Matching Network" (arXiv 1803.08669), section 3.5 and Table 1 (stacked
hourglass), as its authors' code has it. The efficient-attention paper (arXiv 1812.01243, section
5.1) puts its module after the last of the hourglasses: ``insert=[dict(at='out2', layer=...)]`` of
``Plugged``. Whether before or after the skip around the hourglass it does not say; ``out2`` is
after it, ``hourglass3.up2`` before it.

Deviation: an hourglass takes volumes of any size. The authors pad pictures to multiples of 16; here
an upsampling gives the size that the matching downsampling was given.
"""

from collections.abc import Iterator

import torch
from mmengine.model import BaseModule, Sequential
from torch import Tensor, nn
from torch.nn import functional as F

from ...layers.arguments import positive_int
from ...registry import MODELS
from .cost_volume import concatenation_volume
from .features import INIT_CFG


def conv_norm_3d(in_channels: int, out_channels: int, stride: int = 1) -> list[nn.Module]:
    """Return a 3 x 3 x 3 convolution and its batch norm."""
    return [
        nn.Conv3d(in_channels, out_channels, 3, stride, 1, bias=False),
        nn.BatchNorm3d(out_channels),
    ]


class Upsample(BaseModule):
    """Transposed 3 x 3 x 3 convolution of stride 2 to a given size, and its batch norm.

    Args:
        in_channels (int): Channels of the input.
        out_channels (int): Channels of the output.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose3d(in_channels, out_channels, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm3d(out_channels)

    def forward(self, x: Tensor, size: torch.Size) -> Tensor:
        """Return a volume of ``size``, of which a convolution of stride 2 makes that of ``x``."""
        return self.norm(self.conv(x, output_size=size))


class Hourglass(BaseModule):
    """Down to a quarter of the volume's sides and back, with skips from the hourglasses before it.

    Args:
        channels (int): Channels of the volume; inside there are twice as many.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = 2 * channels
        self.down1 = Sequential(
            *conv_norm_3d(channels, inner, 2), nn.ReLU(inplace=True), *conv_norm_3d(inner, inner)
        )
        self.down2 = Sequential(
            *conv_norm_3d(inner, inner, 2),
            nn.ReLU(inplace=True),
            *conv_norm_3d(inner, inner),
            nn.ReLU(inplace=True),
        )
        self.up1 = Upsample(inner, inner)
        self.up2 = Upsample(inner, channels)

    def forward(
        self, x: Tensor, before: Tensor | None = None, after: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the result and the two half-size volumes, on the way down and on the way up.

        Args:
            x (Tensor): ``(N, channels, D, H, W)``.
            before (Tensor, optional): The first hourglass's volume on the way down, which the way
                up is added to; in the first it is its own. Defaults to None.
            after (Tensor, optional): The previous hourglass's volume on the way up, which the way
                down is added to. Defaults to None.
        """
        down = self.down1(x)
        down = F.relu(down if after is None else down + after)
        up = self.up1(self.down2(down), down.shape[2:])
        up = F.relu(up + (down if before is None else before))
        return self.up2(up, x.shape[2:]), down, up


@MODELS.register_module()
class PSMAggregation(BaseModule):
    """From the features of two views to three volumes, each refined further than the one before.

    Args:
        in_channels (int): Channels of the features of both views together. Defaults to 64.
        channels (int): Channels of the volumes. Defaults to 32, the paper's.
        planes (int): Disparities of the volume, in columns of the feature maps: the largest
            disparity divided by four. Defaults to 48.
        init_cfg (dict or list, optional): Initialisation. Defaults to the authors'.

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If a number is smaller than one, or ``in_channels`` is odd.
    """

    def __init__(
        self,
        in_channels: int = 64,
        channels: int = 32,
        planes: int = 48,
        init_cfg: dict | list | None = INIT_CFG,
    ) -> None:
        super().__init__(init_cfg)
        self.in_channels = positive_int('in_channels', in_channels)
        channels = positive_int('channels', channels)
        self.planes = positive_int('planes', planes)
        if in_channels % 2:
            raise ValueError(
                f'in_channels are those of both views together, an even number, got {in_channels}'
            )
        self.stem = Sequential(
            *conv_norm_3d(in_channels, channels),
            nn.ReLU(inplace=True),
            *conv_norm_3d(channels, channels),
            nn.ReLU(inplace=True),
        )
        self.block = Sequential(
            *conv_norm_3d(channels, channels),
            nn.ReLU(inplace=True),
            *conv_norm_3d(channels, channels),
        )
        self.hourglass1 = Hourglass(channels)
        self.hourglass2 = Hourglass(channels)
        self.hourglass3 = Hourglass(channels)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the volumes after the first, the second and the third hourglass.

        Args:
            features (Tensor): Left view's channels, then the right view's,
                ``(N, in_channels, H, W)``.

        Returns:
            tuple[Tensor, Tensor, Tensor]: Each ``(N, channels, planes, H, W)``.
        """
        left, right = features.chunk(2, 1)
        volume = self.stem(concatenation_volume(left, right, self.planes))
        volume = volume + self.block(volume)
        out1, before, after = self.hourglass1(volume)
        out1 = out1 + volume
        out2, _, after = self.hourglass2(out1, before, after)
        out2 = out2 + volume
        out3, _, _ = self.hourglass3(out2, before, after)
        return out1, out2, out3 + volume

    def example_inputs(self) -> Iterator[Tensor]:
        """Yield the inputs with which ``Plugged`` finds out shapes.

        Every column costs as much as ``planes`` of a map, so that they are smaller than usual.
        """
        parameter = next(self.parameters())
        for side in (8, 12):
            yield parameter.new_zeros(1, self.in_channels, side, side)
