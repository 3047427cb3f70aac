"""MnasNet-B1, which mmpretrain does not have.

Paper: "MnasNet: Platform-Aware Neural Architecture Search for Mobile" (arXiv 1807.11626), figure
7, model B1 (without squeeze-and-excitation), in the form of torchvision: widths are rounded to
multiples of 8, the stem's too (torchvision's second version; its first kept the stem at 32 and 16
channels). torchvision's batch norms have a momentum of 0.0003; here it is the usual 0.1, an entry
of ``norm_cfg``. "Shift-and-Balance Attention" (arXiv 2103.13080), table 3, has this network at x0.5
and does not say in which form.

Names of modules are those of mmpretrain's MobileNetV2: ``conv1``, ``layer1`` to ``layer7``, in
whose blocks ``conv`` is a sequence of one to three convolutions, and ``conv2``.
"""

import re
from collections.abc import Mapping, Sequence

from mmcv.cnn import ConvModule
from mmengine.model import BaseModule
from mmpretrain.models.backbones.base_backbone import BaseBackbone
from mmpretrain.models.utils import make_divisible
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import checkpoint

from ...registry import MODELS


class InvertedResidual(BaseModule):
    """A pointwise, a depthwise and a linear pointwise convolution, beside a shortcut.

    Args:
        in_channels (int): Channels of the input.
        out_channels (int): Channels of the output.
        kernel_size (int): Of the depthwise convolution.
        stride (int): Of the depthwise convolution.
        expand_ratio (int): By how much the first convolution widens; 1 leaves it out.
        shortcut (bool): Add the input where its shape is the output's.
        conv_cfg, norm_cfg, act_cfg, with_cp: See :class:`MnasNet`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int,
        expand_ratio: int,
        shortcut: bool,
        conv_cfg: dict | None,
        norm_cfg: dict,
        act_cfg: dict,
        with_cp: bool,
    ) -> None:
        super().__init__()
        self.with_cp = with_cp
        self.shortcut = shortcut and stride == 1 and in_channels == out_channels
        hidden = in_channels * expand_ratio
        settings = dict(conv_cfg=conv_cfg, norm_cfg=norm_cfg)
        layers = []
        if expand_ratio != 1:
            layers.append(ConvModule(in_channels, hidden, 1, act_cfg=act_cfg, **settings))
        layers += [
            ConvModule(
                hidden,
                hidden,
                kernel_size,
                stride=stride,
                padding=kernel_size // 2,
                groups=hidden,
                act_cfg=act_cfg,
                **settings,
            ),
            ConvModule(hidden, out_channels, 1, act_cfg=None, **settings),
        ]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(N, in_channels, H, W)`` to ``(N, out_channels, H / stride, W / stride)``."""
        if self.with_cp and x.requires_grad:
            return checkpoint.checkpoint(self._compute, x, use_reentrant=False)
        return self._compute(x)

    def _compute(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.shortcut else self.conv(x)


@MODELS.register_module()
class MnasNet(BaseBackbone):
    """MnasNet-B1.

    Args:
        widen_factor (float): Multiplier of all widths but the last, 1280. Defaults to 1.
        out_indices (Sequence[int]): Which of the outputs of ``layer1`` to ``layer7`` (0 to 6) and
            of ``conv2`` (7) are returned. Defaults to (7, ).
        frozen_stages (int): ``conv1`` and as many of the stages are frozen; -1 for none. Defaults
            to -1.
        conv_cfg (dict, optional): Type of the convolutions. Defaults to None, ``nn.Conv2d``.
        norm_cfg (dict): Norm. Defaults to batch norm.
        act_cfg (dict): Activation. Defaults to ReLU.
        norm_eval (bool): Keep batch norms in eval mode. Defaults to False.
        with_cp (bool): Recompute blocks in the backward pass. Defaults to False.
        init_cfg (dict or Sequence, optional): Initialisation. Defaults to torchvision's: Kaiming's
            normal distribution by the outputs.

    Raises:
        ValueError: If an argument is out of range.
    """

    # Expansion, channels, blocks, stride, size of the depthwise kernel.
    arch_settings = (
        (1, 16, 1, 1, 3),
        (3, 24, 3, 2, 3),
        (3, 40, 3, 2, 5),
        (6, 80, 3, 2, 5),
        (6, 96, 2, 1, 3),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )

    def __init__(
        self,
        widen_factor: float = 1.0,
        out_indices: Sequence[int] = (7,),
        frozen_stages: int = -1,
        conv_cfg: dict | None = None,
        norm_cfg: dict | None = None,
        act_cfg: dict | None = None,
        norm_eval: bool = False,
        with_cp: bool = False,
        init_cfg: dict | Sequence[dict] | None = None,
    ) -> None:
        if not widen_factor > 0:
            raise ValueError(f'widen_factor must be positive, got {widen_factor!r}')
        if any(index not in range(8) for index in out_indices):
            raise ValueError(f'out_indices must be from 0 to 7, got {out_indices!r}')
        if frozen_stages not in range(-1, 8):
            raise ValueError(f'frozen_stages must be from -1 to 7, got {frozen_stages!r}')
        if init_cfg is None:
            init_cfg = [
                dict(type='Kaiming', layer=['Conv2d'], mode='fan_out'),
                dict(type='Constant', val=1, layer=['_BatchNorm', 'GroupNorm']),
            ]
        super().__init__(init_cfg)
        self.out_indices = tuple(out_indices)
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        settings = dict(
            conv_cfg=conv_cfg,
            norm_cfg=norm_cfg or dict(type='BN'),
            act_cfg=act_cfg or dict(type='ReLU'),
        )
        channels = make_divisible(32 * widen_factor, 8)
        self.conv1 = ConvModule(3, channels, 3, stride=2, padding=1, **settings)
        self.layers = []
        for number, (expand_ratio, width, blocks, stride, kernel_size) in enumerate(
            self.arch_settings, 1
        ):
            out_channels = make_divisible(width * widen_factor, 8)
            # The separable convolution of stage 1 has no shortcut, whatever its shape.
            stage = nn.Sequential(
                *(
                    InvertedResidual(
                        channels if block == 0 else out_channels,
                        out_channels,
                        kernel_size,
                        stride if block == 0 else 1,
                        expand_ratio,
                        block > 0 or number > 1,
                        with_cp=with_cp,
                        **settings,
                    )
                    for block in range(blocks)
                )
            )
            channels = out_channels
            self.add_module(f'layer{number}', stage)
            self.layers.append(f'layer{number}')
        self.conv2 = ConvModule(channels, 1280, 1, **settings)
        self.layers.append('conv2')

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the maps that ``out_indices`` names for pictures ``(N, 3, H, W)``."""
        x = self.conv1(x)
        outputs = []
        for index, name in enumerate(self.layers):
            x = getattr(self, name)(x)
            if index in self.out_indices:
                outputs.append(x)
        return tuple(outputs)

    def train(self, mode: bool = True) -> 'MnasNet':
        """Set training mode, but for what is frozen."""
        super().train(mode)
        frozen = [self.conv1] if self.frozen_stages >= 0 else []
        frozen += [getattr(self, f'layer{number}') for number in range(1, self.frozen_stages + 1)]
        for module in frozen:
            module.eval()
            module.requires_grad_(False)
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self


def from_torchvision(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of a MnasNet of torchvision (its second version) for :class:`MnasNet`.

    Args:
        weights (Mapping[str, Tensor]): ``state_dict()`` of ``torchvision.models.MNASNet``.

    Returns:
        dict[str, Tensor]: Weights of the backbone; the classifier's are left out.

    Raises:
        ValueError: If a name is not one of that network.
    """
    renamed = {}
    for name, value in weights.items():
        if name.startswith('classifier.'):
            continue
        match = re.fullmatch(r'layers\.(\d+)\.(?:(\d+)\.layers\.(\d+)\.)?(\w+)', name)
        if match is None:
            raise ValueError(f'{name!r} is no weight of a MnasNet of torchvision')
        place, block, layer = (None if part is None else int(part) for part in match.groups()[:3])
        if block is not None:  # stages 2 to 7 are places 8 to 13
            module, index = f'layer{place - 6}.{block}.conv.{layer // 3}', layer % 3
        elif place < 3:
            module, index = 'conv1', place
        elif place < 8:
            module, index = f'layer1.0.conv.{(place - 3) // 3}', (place - 3) % 3
        else:
            module, index = 'conv2', place - 14
        renamed[f'{module}.{("conv", "bn")[index]}.{match[4]}'] = value
    return renamed
