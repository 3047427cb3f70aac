#!/usr/bin/env python
"""Train the model of a config with the library's own train.py.

The config's `default_scope` says whose: mmdet's, mmseg's or mmpretrain's. All arguments are that
script's, whose help follows; nothing of the training is done differently.

With --dry-run, nothing is trained: two batches of training, one of validation, a checkpoint, a
resumed step and a test show in a minute or two whether a long run will get through, what memory it
takes and about how long it will be. Nothing is left behind.

example:
    python tools/train.py configs/efficient_attention/\
mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco.py --work-dir work_dirs/ea
    python tools/train.py my_config.py --dry-run
"""

import library_tool

if __name__ == '__main__':
    library_tool.main('train.py', __doc__)
