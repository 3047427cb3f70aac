"""A residual network over clips: ResNet-50 with convolutions in time.

R-C3D of the efficient-attention paper has a "ResNet-50" (table 6) and says no more of it. This is
the common one for clips, of "Can Spatiotemporal 3D CNNs Retrace the History of 2D CNNs and
ImageNet?" (arXiv 1711.09577): every 3 x 3 convolution of ResNet-50 has a third dimension, time, and
so have the stem and its pooling. The stem keeps the frame rate, its pooling and stages 2 to 4 halve
it: three stages make 96 positions of 768 frames. Names of weights are those of that code and of
torchvision's ResNet, so that weights of either load; those of the latter after repeating them in
time (:func:`inflate`; arXiv 1705.07750, section 2.4.1).
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from mmengine.model import BaseModule
from mmengine.runner.checkpoint import CheckpointLoader
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from ...layers.arguments import boolean, positive_int
from ...registry import MODELS


class Bottleneck3d(nn.Module):
    """A pointwise, a 3 x 3 x 3 and a pointwise convolution, beside a shortcut.

    Args:
        in_channels (int): Channels of the input.
        channels (int): Channels between; the output has four times as many.
        stride (int): Of the middle convolution, in time, height and width.
    """

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = channels * self.expansion
        self.conv1 = nn.Conv3d(in_channels, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm3d(channels)
        self.conv2 = nn.Conv3d(channels, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm3d(channels)
        self.conv3 = nn.Conv3d(channels, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm3d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv3d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm3d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(N, in_channels, T, H, W)`` to ``(N, 4 channels, T', H', W')``."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.relu(self.bn3(self.conv3(x)) + shortcut)


@MODELS.register_module()
class ResNet3d(BaseModule):
    """ResNet over clips.

    Args:
        stage_blocks (Sequence[int]): Blocks of each stage; (3, 4, 6, 3), the default, is
            ResNet-50's.
        base_channels (int): Channels of the stem. Stage s, from 1, has ``4 base_channels 2^(s-1)``.
            Defaults to 64.
        stem_kernel (Sequence[int]): Size of the stem's kernel in time, height and width, all odd.
            Defaults to (7, 7, 7).
        frozen_stages (int): Stem and as many stages do not train; -1, the default, for none.
        norm_eval (bool): Keep batch norms in eval mode. Defaults to False.
        with_cp (bool): Recompute blocks in the backward pass to save memory. Defaults to False.
        inflate_from (str, optional): Checkpoint of a ResNet for pictures with the same stages, such
            as ``'torchvision://resnet50'``, whose weights are repeated in time at the start.
            Defaults to None.
        init_cfg (dict or Sequence, optional): Initialisation. Defaults to Kaiming's normal
            distribution by the outputs.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        stage_blocks: Sequence[int] = (3, 4, 6, 3),
        base_channels: int = 64,
        stem_kernel: Sequence[int] = (7, 7, 7),
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        inflate_from: str | None = None,
        init_cfg: dict | Sequence[dict] | None = None,
    ) -> None:
        kernel = tuple(positive_int('stem_kernel', size) for size in stem_kernel)
        if len(kernel) != 3 or any(size % 2 == 0 for size in kernel):
            raise ValueError(f'stem_kernel must be three odd numbers, got {stem_kernel!r}')
        if frozen_stages not in range(-1, len(stage_blocks) + 1):
            raise ValueError(
                f'frozen_stages must be from -1 to {len(stage_blocks)}, got {frozen_stages!r}'
            )
        if init_cfg is None:
            init_cfg = [
                dict(type='Kaiming', layer='Conv3d', mode='fan_out'),
                dict(type='Constant', val=1, layer='_BatchNorm'),
            ]
        super().__init__(init_cfg)
        self.frozen_stages = frozen_stages
        self.norm_eval = boolean('norm_eval', norm_eval)
        self.with_cp = boolean('with_cp', with_cp)
        self.inflate_from = inflate_from
        channels = positive_int('base_channels', base_channels)
        padding = tuple(size // 2 for size in kernel)
        self.conv1 = nn.Conv3d(3, channels, kernel, (1, 2, 2), padding, bias=False)
        self.bn1 = nn.BatchNorm3d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool3d(3, 2, 1)
        self.res_layers: list[str] = []  # what `res3-4` goes by
        self.stage_channels: list[int] = []
        width = channels
        for number, blocks in enumerate(stage_blocks, 1):
            middle = channels * 2 ** (number - 1)
            stage = nn.Sequential()
            for block in range(positive_int('stage_blocks', blocks)):
                stride = 2 if block == 0 and number > 1 else 1
                stage.append(Bottleneck3d(width, middle, stride))
                width = middle * Bottleneck3d.expansion
            self.add_module(f'layer{number}', stage)
            self.res_layers.append(f'layer{number}')
            self.stage_channels.append(width)

    def init_weights(self) -> None:
        """Initialise, then fill in the inflated weights where there are any."""
        super().init_weights()
        if self.inflate_from is not None:
            weights = CheckpointLoader.load_checkpoint(self.inflate_from, map_location='cpu')
            self.load_state_dict(
                inflate(weights.get('state_dict', weights), self.state_dict()), strict=False
            )

    def example_inputs(self) -> Iterator[Tensor]:
        """Yield small clips; ``Plugged`` finds out by them what comes out of the stages."""
        for frames, size in ((16, 32), (32, 48)):
            yield self.conv1.weight.new_zeros(1, 3, frames, size, size)

    def temporal_stride(self, stages: int) -> int:
        """Return how many frames there are from one position to the next after some stages."""
        return 2**stages  # the stem's pooling, and each stage but the first

    def forward(self, x: Tensor, first_stage: int = 0, last_stage: int | None = None) -> Tensor:
        """Run the network or some of its stages.

        Args:
            x (Tensor): Clips ``(N, 3, T, H, W)``, or the output of the stage before the first.
            first_stage (int): Stage to begin with, counted from 1; 0, the default, is the stem.
            last_stage (int, optional): Stage to end with. Defaults to None, the last.

        Returns:
            Tensor: Output of the last of them, ``(N, stage_channels[last - 1], T', H', W')``.
        """
        if first_stage == 0:
            x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name in self.res_layers[max(first_stage - 1, 0) : last_stage]:
            stage = getattr(self, name)
            if self.with_cp and x.requires_grad:
                x = checkpoint(stage, x, use_reentrant=False)
            else:
                x = stage(x)
        return x

    def train(self, mode: bool = True) -> 'ResNet3d':
        """Set training mode, but for what is frozen."""
        super().train(mode)
        frozen = [self.conv1, self.bn1] if self.frozen_stages >= 0 else []
        frozen += [getattr(self, name) for name in self.res_layers[: max(self.frozen_stages, 0)]]
        for module in frozen:
            module.eval()
            module.requires_grad_(False)
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self


def inflate(pictures: Mapping[str, Tensor], clips: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Make weights for clips of a ResNet's weights for pictures.

    A kernel is repeated in time and divided by the number of repetitions, so that a clip of one
    picture shown all the time gives what the picture gave.

    Args:
        pictures (Mapping[str, Tensor]): ``state_dict`` of a ResNet for pictures, torchvision's or
            mmdet's; what follows the stages is left out.
        clips (Mapping[str, Tensor]): ``state_dict`` of the :class:`ResNet3d` to fill.

    Returns:
        dict[str, Tensor]: Weights for it.

    Raises:
        ValueError: If weights are missing or have another shape.
    """
    filled = {}
    for name, target in clips.items():
        if name.startswith('attention.'):
            continue
        if name not in pictures:
            raise ValueError(f'the weights to inflate have no {name!r}')
        weight = pictures[name]
        if target.dim() == 5:
            weight = weight.unsqueeze(2).expand(-1, -1, target.shape[2], -1, -1) / target.shape[2]
        if weight.shape != target.shape:
            raise ValueError(
                f'{name!r} is {tuple(pictures[name].shape)} in the weights to inflate, which does '
                f'not make {tuple(target.shape)}'
            )
        filled[name] = weight.to(torch.float32) if weight.is_floating_point() else weight
    return filled
