"""An attention layer as the output layer of a segmenter.

Paper: "Kronecker Attention Networks" (arXiv 2007.08442), section 4.6: DeepLabV2 with its pyramid
replaced by a regular or Kronecker attention operator, with linear transformations on query, key
and value. Width and shape of that layer are not stated. Ours: a 3x3 convolution to ``channels``,
the attention, dropout and a 1x1 classifier, which is mmsegmentation's usual order.
"""

from collections.abc import Sequence
from typing import Any

from mmcv.cnn import ConvModule
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor, nn

from ...layers.arguments import positive_int
from ...plugging.build import build_layer
from ...registry import MODELS
from .inputs import check_feature_maps


@MODELS.register_module()
class AttentionHead(BaseDecodeHead):
    """Convolution, attention and classifier.

    Args:
        in_channels (int): Channels of the feature map.
        channels (int): Channels in which the attention works.
        num_classes (int): Classes, background included.
        attention (dict): Config of any layer that takes ``in_channels`` and keeps the shape.
        kernel_size (int): Of the convolution before the attention; 0 leaves it out, and
            ``in_channels`` must then be ``channels``. Defaults to 3.
        in_index (int): Which of the backbone's maps is taken. Defaults to -1.
        dropout_ratio (float): Dropout of whole channels before the classifier. Defaults to 0.1.
        norm_cfg (dict, optional): Norm of the convolution. Defaults to None.
        act_cfg (dict, optional): Activation of the convolution. Defaults to ReLU.
        loss_decode (dict or list[dict], optional): Loss. Defaults to cross entropy.
        ignore_index (int): Label that takes no part in the loss. Defaults to 255.
        align_corners (bool): How maps are resized. Defaults to False.
        init_cfg (dict, optional): Initialisation. Defaults to a normal distribution of standard
            deviation 0.01 for the classifier.

    Raises:
        TypeError: If ``kernel_size`` is not an integer.
        ValueError: If the convolution is left out and the channels differ, it has an even or
            negative size, or the attention takes or gives other than ``channels``.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        num_classes: int,
        attention: dict[str, Any],
        kernel_size: int = 3,
        in_index: int = -1,
        dropout_ratio: float = 0.1,
        norm_cfg: dict | None = None,
        act_cfg: dict | None = None,
        loss_decode: dict | list[dict] | None = None,
        ignore_index: int = 255,
        align_corners: bool = False,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(
            in_channels=in_channels,
            channels=channels,
            num_classes=num_classes,
            in_index=in_index,
            dropout_ratio=dropout_ratio,
            norm_cfg=norm_cfg,
            act_cfg=dict(type='ReLU') if act_cfg is None else act_cfg,
            loss_decode=dict(type='mmseg.CrossEntropyLoss') if loss_decode is None else loss_decode,
            ignore_index=ignore_index,
            align_corners=align_corners,
            init_cfg=dict(type='Normal', std=0.01, override=dict(name='conv_seg'))
            if init_cfg is None
            else init_cfg,
        )
        if kernel_size != 0 and positive_int('kernel_size', kernel_size) % 2 == 0:
            raise ValueError(f'kernel_size must be odd, or 0 for no convolution, got {kernel_size}')
        if attention.get('in_channels', channels) != channels:
            raise ValueError(
                f'the attention works on channels={channels}, got in_channels='
                f'{attention["in_channels"]} in its config; leave that out'
            )
        if kernel_size == 0:
            if in_channels != channels:
                raise ValueError(
                    'without a convolution the channels stay the same, got '
                    f'in_channels={in_channels} and channels={channels}'
                )
            self.bottleneck = nn.Identity()
        else:
            self.bottleneck = ConvModule(
                in_channels,
                channels,
                kernel_size,
                padding=kernel_size // 2,
                norm_cfg=self.norm_cfg,
                act_cfg=self.act_cfg,
            )
        self.attention = build_layer(dict(attention, in_channels=channels))
        given = getattr(self.attention, 'out_channels', channels)
        if given != channels:
            raise ValueError(
                f'the classifier takes channels={channels}, but the attention gives '
                f'out_channels={given}'
            )

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return the scores ``(N, num_classes, H, W)`` at the size of the feature map."""
        check_feature_maps(self, inputs)
        x = self._transform_inputs(inputs)
        return self.cls_seg(self.attention(self.bottleneck(x)))
