"""The feature network of PSMNet: a dilated residual network and pooling over four sizes.

Paper: "Pyramid Stereo Matching Network" (arXiv 1803.08669), sections 3.2 and 3.3 and Table 1, as
its authors' code has it. Both views go through the same network, one after the other.

Deviation: a pooling window is never larger than the map. The paper's windows of 64 x 64 need
pictures of 256 x 256 at least; on smaller ones the largest averages the whole map.
"""

from collections.abc import Sequence

import torch
from mmengine.model import BaseModule, Sequential
from torch import Tensor, nn
from torch.nn import functional as F

from ...layers.arguments import positive_int
from ...registry import MODELS

# As in the authors' code: normal with deviation sqrt(2 / (kernel * out_channels)).
INIT_CFG = [
    dict(
        type='Kaiming',
        layer=['Conv2d', 'Conv3d'],
        mode='fan_out',
        nonlinearity='relu',
        distribution='normal',
    ),
    dict(type='Constant', layer=['BatchNorm2d', 'BatchNorm3d'], val=1, bias=0),
]


def conv_norm(
    in_channels: int, out_channels: int, kernel: int, stride: int = 1, dilation: int = 1
) -> list[nn.Module]:
    """Return a convolution that keeps the size but for its stride, and its batch norm."""
    padding = dilation * (kernel // 2)
    return [
        nn.Conv2d(
            in_channels, out_channels, kernel, stride, padding, dilation=dilation, bias=False
        ),
        nn.BatchNorm2d(out_channels),
    ]


class PSMBlock(BaseModule):
    """Two 3 x 3 convolutions and a skip; no activation after the sum.

    Args:
        in_channels (int): Channels of the input.
        channels (int): Channels of the output.
        stride (int): Stride of the first convolution. Defaults to 1.
        dilation (int): Dilation of both. Defaults to 1.
    """

    def __init__(self, in_channels: int, channels: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv1 = Sequential(
            *conv_norm(in_channels, channels, 3, stride, dilation), nn.ReLU(inplace=True)
        )
        self.conv2 = Sequential(*conv_norm(channels, channels, 3, 1, dilation))
        self.downsample = None
        if stride != 1 or in_channels != channels:
            self.downsample = Sequential(*conv_norm(in_channels, channels, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        skip = x if self.downsample is None else self.downsample(x)
        return self.conv2(self.conv1(x)) + skip


class PooledBranch(BaseModule):
    """Averages over square windows, 1 x 1 convolution, back to the size of the map.

    Args:
        in_channels (int): Channels of the input.
        channels (int): Channels of the output.
        window (int): Side of the windows.
    """

    def __init__(self, in_channels: int, channels: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.conv = Sequential(*conv_norm(in_channels, channels, 1), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2:]
        pooled = F.avg_pool2d(x, [min(self.window, side) for side in size])
        norm = self.conv[1]
        if isinstance(norm, nn.BatchNorm2d) and norm.training and pooled[:, 0].numel() == 1:
            raise ValueError(
                f'a window of {self.window} leaves one average of a map of {size[0]} x {size[1]}, '
                'of which batch norm learns nothing in training: take several pairs in a batch, '
                'larger crops or smaller windows'
            )
        return F.interpolate(self.conv(pooled), size, mode='bilinear', align_corners=False)


@MODELS.register_module()
class PSMFeatures(BaseModule):
    """Turn one view into a map of a quarter of its height and width.

    Args:
        base_channels (int): Channels of the stem and the first stage; the next stages have two,
            four and four times as many. Defaults to 32, the paper's.
        out_channels (int): Channels of the result, and of each pooled branch. Defaults to 32.
        blocks (Sequence[int]): Residual blocks of the four stages. Defaults to the paper's.
        windows (Sequence[int]): Sides of the pooling windows on the map. Defaults to the paper's.
        init_cfg (dict or list, optional): Initialisation. Defaults to the authors'.

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If a number is smaller than one or there are not four stages.
    """

    def __init__(
        self,
        base_channels: int = 32,
        out_channels: int = 32,
        blocks: Sequence[int] = (3, 16, 3, 3),
        windows: Sequence[int] = (64, 32, 16, 8),
        init_cfg: dict | list | None = INIT_CFG,
    ) -> None:
        super().__init__(init_cfg)
        width = positive_int('base_channels', base_channels)
        out_channels = positive_int('out_channels', out_channels)
        blocks = [positive_int('blocks', number) for number in blocks]
        windows = [positive_int('windows', side) for side in windows]
        if len(blocks) != 4:
            raise ValueError(f'blocks must have four numbers, one for each stage, got {blocks}')
        self.stem = Sequential(
            *conv_norm(3, width, 3, stride=2),
            nn.ReLU(inplace=True),
            *conv_norm(width, width, 3),
            nn.ReLU(inplace=True),
            *conv_norm(width, width, 3),
            nn.ReLU(inplace=True),
        )
        self.layer1 = _stage(width, width, blocks[0])
        self.layer2 = _stage(width, 2 * width, blocks[1], stride=2)
        self.layer3 = _stage(2 * width, 4 * width, blocks[2])
        self.layer4 = _stage(4 * width, 4 * width, blocks[3], dilation=2)
        self.res_layers = ['layer1', 'layer2', 'layer3', 'layer4']  # points res1 to res4
        for number, window in enumerate(windows, 1):
            setattr(self, f'branch{number}', PooledBranch(4 * width, out_channels, window))
        self.branches = [f'branch{number}' for number in range(1, len(windows) + 1)]
        joined = 6 * width + out_channels * len(windows)
        self.fusion = Sequential(
            *conv_norm(joined, 4 * width, 3),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * width, out_channels, 1, bias=False),
        )

    def forward(self, view: Tensor) -> Tensor:
        """Return the features ``(N, out_channels, H / 4, W / 4)``, rounded up, of one view.

        Args:
            view (Tensor): ``(N, 3, H, W)``.
        """
        fine = self.layer2(self.layer1(self.stem(view)))
        coarse = self.layer4(self.layer3(fine))
        pooled = [getattr(self, name)(coarse) for name in reversed(self.branches)]
        return self.fusion(torch.cat([fine, coarse, *pooled], 1))


def _stage(
    in_channels: int, channels: int, blocks: int, stride: int = 1, dilation: int = 1
) -> Sequential:
    first = PSMBlock(in_channels, channels, stride, dilation)
    return Sequential(
        first, *(PSMBlock(channels, channels, 1, dilation) for _ in range(blocks - 1))
    )
