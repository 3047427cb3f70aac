"""What the decode heads demand of their input."""

from typing import Any

from torch import nn


def check_feature_maps(head: nn.Module, inputs: Any) -> None:
    """Raise TypeError unless ``inputs`` is a list or tuple of feature maps.

    mmsegmentation's MobileNetV2 and some others return the bare map if they are asked for one;
    ``inputs[in_index]`` would then be one picture of the batch, and fail obscurely or not at all.
    """
    if not isinstance(inputs, (list, tuple)):
        raise TypeError(
            f'{type(head).__name__} takes a list of feature maps, got '
            f'{type(inputs).__name__}; if the backbone returns a bare map, ask it for '
            'two or more out_indices'
        )
