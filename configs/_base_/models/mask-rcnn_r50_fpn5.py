# Mask R-CNN of the efficient-attention paper (arXiv 1812.01243, table 9): mmdet's, except that the
# fifth pyramid level is a convolution of stride 2 on res4 and not a max-pooled fourth level.
#
# Deviations from table 9:
# - There fpn5 also feeds fpn4 from above, and the RPN reads fpn1-4 only. mmdet's FPN does not feed
#   extra levels downwards; were its RPN to read four levels, fpn5 and an attention layer on it
#   would have no effect on anything. So the RPN reads all five levels here. RoIAlign reads fpn1-4,
#   as there.
# - There the finished output of a level, attention included, feeds the level below. mmdet's FPN
#   adds laterals before the 3 x 3 convolutions, so a layer on one level leaves the others as they
#   are.
# - Table 9 lists a 3 x 3 first convolution and 2 x 2 max pooling; the ImageNet weights that mmdet
#   loads are of the usual ResNet with 7 x 7 and 3 x 3.
# The paper does not say whether stages are frozen or batch norms kept in eval mode; mmdet's
# defaults (stem and res1 frozen, norms in eval mode) stay. Inserted layers are exempt from both.
_base_ = 'mmdet::_base_/models/mask-rcnn_r50_fpn.py'

model = dict(neck=dict(add_extra_convs='on_input', num_outs=5))
