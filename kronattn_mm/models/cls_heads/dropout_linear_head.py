"""A linear classifier behind dropout, as in MobileNetV2 and KANet.

Paper: "Kronecker Attention Networks" (arXiv 2007.08442), section 4.1: "Dropout with a keep rate of
0.8 is applied after the global average pooling layer". mmpretrain has no head that does it:
``LinearClsHead`` has no dropout, ``StackedLinearClsHead`` needs a hidden layer, and its necks pass
tuples, which ``torch.nn.Dropout`` does not take.
"""

from collections.abc import Sequence

from mmpretrain.models.heads import LinearClsHead
from torch import Tensor, nn

from ...registry import MODELS


@MODELS.register_module()
class DropoutLinearClsHead(LinearClsHead):
    """``mmpretrain.LinearClsHead`` with dropout on its input; the weights have the same names.

    Args:
        num_classes (int): Number of classes.
        in_channels (int): Number of features.
        dropout (float): Probability to drop a feature, from 0 to below 1; a keep rate of 0.8 is
            ``dropout=0.2``. Defaults to 0.2.
        loss (dict, optional): Config of the loss. Defaults to cross-entropy.
        topk (int or Sequence[int]): For the accuracy in training logs. Defaults to 1.
        cal_acc (bool): Log the training accuracy. Defaults to False.
        init_cfg (dict, optional): Initialisation. Defaults to Xavier, as in the paper.

    Raises:
        ValueError: If dropout is not from 0 to below 1.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        dropout: float = 0.2,
        loss: dict | None = None,
        topk: int | Sequence[int] = (1,),
        cal_acc: bool = False,
        init_cfg: dict | None = None,
    ) -> None:
        if not 0 <= dropout < 1:
            raise ValueError(f'dropout must be from 0 to below 1, got {dropout!r}')
        super().__init__(
            num_classes,
            in_channels,
            init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform')
            if init_cfg is None
            else init_cfg,
            loss=dict(type='mmpretrain.CrossEntropyLoss', loss_weight=1.0)
            if loss is None
            else loss,
            topk=topk,
            cal_acc=cal_acc,
        )
        self.dropout = nn.Dropout(dropout)

    def pre_logits(self, feats: tuple[Tensor, ...]) -> Tensor:
        """Return the features before the classifier, ``(N, in_channels)``."""
        return self.dropout(super().pre_logits(feats))
