"""Metrics of the tasks that the OpenMMLab libraries do not have."""
