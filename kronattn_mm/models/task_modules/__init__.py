"""Priors and other parts of detectors that are no networks; mmdet is needed."""
