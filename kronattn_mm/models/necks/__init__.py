"""Necks; mmdet is needed."""
