# mmdet's Pascal VOC 2007 + 2012, and both figures that the literature calls mAP from one run of
# test.py: pascal_voc/mAP is VOC 2007's, the mean of the precisions at 11 recalls;
# pascal_voc_area/mAP is the area under the curve, as from VOC 2010 on. mmdet warns of the one that
# is not the year's own and computes it. During training only the first is computed.
_base_ = 'mmdet::_base_/datasets/voc0712.py'

test_evaluator = [
    dict(type='VOCMetric', metric='mAP', eval_mode='11points', prefix='pascal_voc'),
    dict(type='VOCMetric', metric='mAP', eval_mode='area', prefix='pascal_voc_area'),
]
