#!/usr/bin/env python
"""Train the model of a config with the library's own train.py.

The config's `default_scope` says whose: mmdet's, mmseg's or mmpretrain's. All arguments are that
script's, whose help follows; nothing of the training is done differently.

example:
    python tools/train.py configs/efficient_attention/\
mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco.py --work-dir work_dirs/ea
"""

import library_tool

if __name__ == '__main__':
    library_tool.main('train.py', __doc__)
