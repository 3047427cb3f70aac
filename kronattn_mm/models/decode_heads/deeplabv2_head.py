"""The output layer of DeepLabV2, which mmsegmentation does not have.

Paper: "DeepLab: Semantic Image Segmentation with Deep Convolutional Nets, Atrous Convolution, and
Fully Connected CRFs" (arXiv 1606.00915): atrous spatial pyramid pooling as the sum of dilated
classifiers. It is the baseline of "Kronecker Attention Networks" (arXiv 2007.08442), section 4.6.

Deviation: one convolution a branch, as in the ResNet form of DeepLabV2; the VGG form has two more
1x1 convolutions in each.
"""

from collections.abc import Sequence

from mmengine.model import ModuleList
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor, nn

from ...layers.arguments import positive_int
from ...registry import MODELS
from .inputs import check_feature_maps


@MODELS.register_module()
class DeepLabV2Head(BaseDecodeHead):
    """Sum of 3x3 classifiers with different dilations.

    Args:
        in_channels (int): Channels of the feature map.
        num_classes (int): Classes, background included.
        dilations (Sequence[int]): Dilation of each classifier. Defaults to ``(6, 12, 18, 24)``.
        in_index (int): Which of the backbone's maps is taken. Defaults to -1.
        dropout_ratio (float): Dropout of whole channels before the classifiers. Defaults to 0.
        loss_decode (dict or list[dict], optional): Loss. Defaults to cross entropy.
        ignore_index (int): Label that takes no part in the loss. Defaults to 255.
        align_corners (bool): How maps are resized. Defaults to False.
        init_cfg (dict, optional): Initialisation. Defaults to a normal distribution of standard
            deviation 0.01, as in DeepLab.

    Raises:
        TypeError: If ``dilations`` holds something other than integers.
        ValueError: If ``dilations`` is empty or holds something smaller than one.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        dilations: Sequence[int] = (6, 12, 18, 24),
        in_index: int = -1,
        dropout_ratio: float = 0.0,
        loss_decode: dict | list[dict] | None = None,
        ignore_index: int = 255,
        align_corners: bool = False,
        init_cfg: dict | None = None,
    ) -> None:
        if not dilations:
            raise ValueError('dilations must have at least one entry, got none')
        checked = tuple(positive_int('each of dilations', dilation) for dilation in dilations)
        super().__init__(
            in_channels=in_channels,
            channels=in_channels,
            num_classes=num_classes,
            in_index=in_index,
            dropout_ratio=dropout_ratio,
            loss_decode=dict(type='mmseg.CrossEntropyLoss') if loss_decode is None else loss_decode,
            ignore_index=ignore_index,
            align_corners=align_corners,
            init_cfg=dict(type='Normal', std=0.01, layer='Conv2d')
            if init_cfg is None
            else init_cfg,
        )
        # The base class makes a 1x1 classifier, which would stay without a gradient here.
        del self.conv_seg
        self.dilations = checked
        self.classifiers = ModuleList(
            [
                nn.Conv2d(in_channels, self.out_channels, 3, padding=dilation, dilation=dilation)
                for dilation in checked
            ]
        )

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return the scores ``(N, num_classes, H, W)`` at the size of the feature map."""
        check_feature_maps(self, inputs)
        x = self._transform_inputs(inputs)
        if self.dropout is not None:
            x = self.dropout(x)
        first, *others = self.classifiers
        scores = first(x)
        for classifier in others:
            scores = scores + classifier(x)
        return scores
