"""mmdet's SSD head, able to evaluate.

``mmdet.SSDHead`` of mmdet 3.2, 3.3 and the fork 3.5 skips the constructor of ``AnchorHead`` and has
no ``loss_cls``; the prediction that all dense heads share asks ``loss_cls`` whether it turns scores
into probabilities in a way of its own (V3Det's losses do). So an SSD trains, and ends with an
AttributeError at its first validation (mmdetection #11063, #11780). An argument of the config
cannot help, as the head has none for it.
"""

from mmdet.models.dense_heads import SSDHead as MMDetSSDHead

from ...registry import MODELS


@MODELS.register_module()
class SSDHead(MMDetSSDHead):
    """``mmdet.SSDHead`` that has the one attribute which its prediction asks for.

    Arguments, weights, losses and results are those of ``mmdet.SSDHead``.
    """

    # SSD's softmax loss with hard negatives is computed by the head itself, without an object.
    loss_cls = None
