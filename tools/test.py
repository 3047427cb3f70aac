#!/usr/bin/env python
"""Evaluate a checkpoint on a config's test set with the library's own test.py.

The config's `default_scope` says whose: mmdet's, mmseg's or mmpretrain's. All arguments are that
script's, whose help follows; nothing of the evaluation is done differently.

example:
    python tools/test.py configs/efficient_attention/\
mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco.py work_dirs/ea/epoch_24.pth --show-dir pictures
"""

import library_tool

if __name__ == '__main__':
    library_tool.main('test.py', __doc__)
