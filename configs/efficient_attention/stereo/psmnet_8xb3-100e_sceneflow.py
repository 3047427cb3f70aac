# Efficient attention (arXiv 1812.01243), table 7, PSMNet (baseline).
_base_ = [
    './_base_/psmnet.py',
    './_base_/sceneflow.py',
    './_base_/adam_8xb3-100e.py',
    './_base_/runtime.py',
]
