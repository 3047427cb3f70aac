# Kronecker Attention Networks (arXiv 2007.08442), table 6, row DeepLabV2: the baseline with ASPP.
_base_ = [
    './_base_/models/deeplabv2_r101-d8_aspp.py',
    './_base_/datasets/voc12aug_321x321.py',
    './_base_/schedules/sgd_poly_25k.py',
    './_base_/runtime.py',
]
