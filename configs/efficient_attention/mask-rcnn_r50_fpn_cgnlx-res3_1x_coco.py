# CGNL with the Gaussian kernel (CGNLx, Taylor order 3), whose context the norm does not cancel
# (kronattn_mm/layers/cgnl.py), at the place of the row CGNL of table 3.
_base_ = './mask-rcnn_r50_fpn_cgnl-res3_1x_coco.py'

attention = dict(type='kronattn_mm.CGNL2d', groups=8, order=3)
model = dict(backbone=dict(insert=[dict(at='layer3.4', layer=attention)]))
