"""Datasets and transforms of the tasks that the OpenMMLab libraries do not have."""
