"""Backbones; mmengine and mmcv are needed."""
