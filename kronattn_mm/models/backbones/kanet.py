"""KANet: MobileNetV2's skeleton with skip and attention modules.

Paper: "Kronecker Attention Networks" (arXiv 2007.08442), section 3.5.

THE DEFAULT TABLE IS A RECONSTRUCTION. The paper's Table 1, which lists the modules, was not at
hand. Known are the skeleton (MobileNetV2's), that attention modules stand only where the input is
28 x 28, 14 x 14 or 7 x 7, and that the network has 0.03 M parameters less than MobileNetV2. The
table here obeys these and is one of several that do; another one can be given by ``arch``.

    input        modules                             expansion  channels  stride
    112 x 112    base                                        1        16       1
    112 x 112    base_skip x 2                               6        24       2
    56 x 56      base_skip, attn_skip x 2                    6        32       2
    28 x 28      base_skip x 4                               6        64       2
    14 x 14      base_skip, attn_skip x 2                    6        96       1
    14 x 14      base_skip, attn_skip x 2                    6       160       2
    7 x 7        attn_skip                                   6       320       1

Cost at 224 x 224 with a classifier of 1000 classes, batch norm not counted: 3.44 M parameters;
288 M multiply-adds with KAO_KV, 281 M with KAO_QKV. A test counts them. One of the paper's
statements is not met: KANet without KAO should cost more than KANet_KV, here both cost 288 M
(docs/kanet.md).
"""

from collections.abc import Sequence
from typing import Any

from mmengine.model import BaseModule as MMBaseModule
from mmengine.model import Sequential
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ...registry import MODELS
from .kanet_modules import MODULES, Convolution

# (expansion, channels, stride, one module a block), a row a stage.
Stage = tuple[int, int, int, tuple[str, ...]]


def _mobilenet_skeleton(first: str, attended: str) -> list[Stage]:
    """MobileNetV2's table with ``first`` in its blocks and ``attended`` where KANet attends."""
    return [
        (1, 16, 1, ('base',)),
        (6, 24, 2, (first, first)),
        (6, 32, 2, (first, attended, attended)),
        (6, 64, 2, (first, first, first, first)),
        (6, 96, 1, (first, attended, attended)),
        (6, 160, 2, (first, attended, attended)),
        (6, 320, 1, (attended,)),
    ]


ARCHS = {
    # Reconstructed; see above.
    'kanet': _mobilenet_skeleton('base_skip', 'attn_skip'),
    # The paper's ablations: AttnSkipModules become BaseModules; and MobileNetV2 whose BaseModules
    # become AttnModules (in the places where the reconstruction attends).
    'kanet_without_kao': _mobilenet_skeleton('base_skip', 'base'),
    'mobilenetv2_kao': _mobilenet_skeleton('base', 'attn'),
    'mobilenetv2': _mobilenet_skeleton('base', 'base'),
}

KAO_KV = dict(
    type='kronattn_mm.KroneckerAttention2d',
    mode='kv',
    transforms='v',
    residual=False,
    coefficient_norm='batch_norm',
)


@MODELS.register_module()
class KANet(MMBaseModule):
    """Kronecker attention network, a backbone for classifiers, detectors and segmenters.

    Args:
        arch (str or Sequence): Name of a table, ``'kanet'``, ``'kanet_without_kao'``,
            ``'mobilenetv2_kao'`` or ``'mobilenetv2'``, or a table: a row ``(expansion, channels,
            stride, modules)`` for each stage, modules being a tuple of ``'base'``,
            ``'base_skip'``, ``'attn'`` and ``'attn_skip'``, one for each block. Defaults to
            ``'kanet'``, which is reconstructed (see the head of this file).
        attention (dict, optional): Config of the attention layer in attention modules. Defaults
            to KAO_KV with a transformation of the values and batch norm on the coefficients.
        widen_factor (float): Multiplies all channels, rounded to multiples of 8. Defaults to 1.
        out_indices (Sequence[int], optional): Which outputs to return: 0 to 6 are the stages
            ``layer1`` to ``layer7``, 7 is the last 1x1 convolution, ``conv2`` (with a table of
            other length, as many as it has rows). Defaults to the last convolution.
        frozen_stages (int): Stages whose weights and norms are fixed, counted from ``layer1``; 0
            fixes the first convolution alone, -1 nothing. Defaults to -1.
        norm_cfg (dict, optional): Norm of the convolutions. Defaults to batch norm.
        act_cfg (dict, optional): Activation of the convolutions. Defaults to ReLU6.
        norm_eval (bool): Keep batch norms in eval mode while training. This is for weights of a
            trained KANet: with others, the norm of the coefficients would have statistics of 0
            and 1 for ever. Defaults to False.
        with_cp (bool): Recompute the blocks in the backward pass. Defaults to False.
        pretrained (str, optional): Checkpoint to start from, as mmsegmentation passes it.
        init_cfg (dict or list[dict], optional): Initialisation. Defaults to Xavier for
            convolutions, as in the paper, and one for norms.

    Raises:
        TypeError: If the table or ``out_indices`` has the wrong form.
        ValueError: If an argument is not one of its choices, or ``init_cfg`` and ``pretrained``
            are both given.
    """

    def __init__(
        self,
        arch: str | Sequence[Stage] = 'kanet',
        attention: dict[str, Any] | None = None,
        widen_factor: float = 1.0,
        out_indices: Sequence[int] | None = None,
        frozen_stages: int = -1,
        norm_cfg: dict | None = None,
        act_cfg: dict | None = None,
        norm_eval: bool = False,
        with_cp: bool = False,
        pretrained: str | None = None,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        if pretrained is not None:
            if init_cfg is not None:
                raise ValueError(
                    'init_cfg and pretrained cannot both be given, got '
                    f'init_cfg={init_cfg!r} and pretrained={pretrained!r}'
                )
            init_cfg = dict(type='Pretrained', checkpoint=pretrained)
        elif init_cfg is None:
            init_cfg = [
                dict(type='Xavier', layer=['Conv1d', 'Conv2d'], distribution='uniform'),
                dict(type='Constant', val=1, layer=['_BatchNorm', 'GroupNorm']),
            ]
        super().__init__(init_cfg)
        stages = check_arch(arch)
        last = len(stages)
        out_indices = (last,) if out_indices is None else out_indices
        if not isinstance(out_indices, Sequence):
            raise TypeError(f'out_indices must be a sequence such as (7, ), got {out_indices!r}')
        if not out_indices or not set(out_indices) <= set(range(last + 1)):
            raise ValueError(f'out_indices must be among 0 to {last}, got {tuple(out_indices)}')
        if frozen_stages not in range(-1, last + 1):
            raise ValueError(f'frozen_stages must be from -1 to {last}, got {frozen_stages!r}')
        if (
            isinstance(widen_factor, bool)
            or not isinstance(widen_factor, (int, float))
            or not widen_factor > 0
        ):
            raise ValueError(f'widen_factor must be a number above 0, got {widen_factor!r}')
        self.out_indices = tuple(out_indices)
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        attention = KAO_KV if attention is None else attention
        norm_cfg = dict(type='BN') if norm_cfg is None else norm_cfg
        act_cfg = dict(type='ReLU6') if act_cfg is None else act_cfg

        channels = make_divisible(32 * widen_factor)
        self.conv1 = Convolution(
            3, channels, 3, stride=2, padding=1, norm_cfg=norm_cfg, act_cfg=act_cfg
        )
        self.layers = []
        for number, (expansion, width, stride, modules) in enumerate(stages, start=1):
            blocks = []
            for block, name in enumerate(modules):
                module = MODULES[name]
                out_channels = make_divisible(width * widen_factor)
                blocks.append(
                    module(
                        channels,
                        out_channels,
                        stride if block == 0 else 1,
                        expansion,
                        attention if module.uses_attention else None,
                        norm_cfg,
                        act_cfg,
                        with_cp,
                    )
                )
                channels = out_channels
            self.add_module(f'layer{number}', Sequential(*blocks))
            self.layers.append(f'layer{number}')
        self.out_channels = max(1280, int(1280 * widen_factor))
        self.conv2 = Convolution(channels, self.out_channels, 1, norm_cfg=norm_cfg, act_cfg=act_cfg)
        self.layers.append('conv2')
        self._freeze_stages()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the chosen feature maps of images ``(N, 3, H, W)``."""
        x = self.conv1(x)
        outs = []
        for index, name in enumerate(self.layers):
            x = getattr(self, name)(x)
            if index in self.out_indices:
                outs.append(x)
        return tuple(outs)

    def train(self, mode: bool = True) -> 'KANet':
        """Set the mode, leaving frozen stages and, with ``norm_eval``, norms in eval mode."""
        super().train(mode)
        self._freeze_stages()
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def _freeze_stages(self) -> None:
        if self.frozen_stages < 0:
            return
        for name in ('conv1', *self.layers[: self.frozen_stages]):
            stage = getattr(self, name)
            stage.eval()
            for parameter in stage.parameters():
                parameter.requires_grad = False


def check_arch(arch: str | Sequence[Stage]) -> list[Stage]:
    """Return the table that ``arch`` names or is.

    Raises:
        TypeError: If a table is not a sequence of rows ``(expansion, channels, stride, modules)``.
        ValueError: If the name of a table or of a module is unknown.
    """
    if isinstance(arch, str):
        if arch not in ARCHS:
            raise ValueError(
                f'arch must be one of {", ".join(map(repr, ARCHS))} or a table, got {arch!r}'
            )
        return ARCHS[arch]
    if not isinstance(arch, Sequence) or not arch:
        raise TypeError(f'arch must be the name of a table or a sequence of rows, got {arch!r}')
    for row in arch:
        if (
            not isinstance(row, Sequence)
            or len(row) != 4
            or not isinstance(row[3], Sequence)
            or isinstance(row[3], str)
            or not row[3]
        ):
            raise TypeError(
                'a row of arch is (expansion, channels, stride, modules), modules '
                f'being a tuple of names, got {row!r}'
            )
        unknown = [name for name in row[3] if name not in MODULES]
        if unknown:
            raise ValueError(
                f'modules are {", ".join(map(repr, MODULES))}, got {unknown[0]!r} in {row!r}'
            )
    return [tuple(row) for row in arch]


def make_divisible(channels: float, divisor: int = 8) -> int:
    """Round to a multiple of ``divisor``, never more than 10 % down (MobileNetV2's rule)."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded
