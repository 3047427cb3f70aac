"""Boxes and the picture they lie on, for all forms of annotation."""

import math
from typing import Any

# Boxes are written with a few decimals: that much beyond the edge is rounding.
ROUNDING = 0.05


def box_finding(
    x1: Any, y1: Any, x2: Any, y2: Any, width: float, height: float
) -> tuple[str, str] | None:
    """Say what is wrong with a box.

    Args:
        x1: Left edge in pixels; the picture's left edge is 0.
        y1: Upper edge.
        x2: Right edge; the picture's right edge is ``width``.
        y2: Lower edge.
        width: Width of the picture in pixels.
        height: Height of the picture in pixels.

    Returns:
        tuple[str, str] | None: The kind of finding and a sentence, or None if nothing is wrong.
        Up to one pixel beyond the edge is ``'box at the edge'`` (often a set that counts from 1
        read as one that counts from 0), more is ``'box outside'``.
    """
    corners = (x1, y1, x2, y2)
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in corners):
        return 'bad box', f'the box {list(corners)} is not four finite numbers'
    text = f'[{x1:g}, {y1:g}, {x2:g}, {y2:g}]'
    if x2 < x1 or y2 < y1:
        return 'bad box', f'the box {text} ends before it begins'
    beyond = max(-x1, -y1, x2 - width, y2 - height)
    picture = f'the picture of {width:g} x {height:g}'
    if beyond > 1 or x1 >= width or y1 >= height or x2 <= 0 or y2 <= 0:
        return 'box outside', f'the box {text} reaches {beyond:g} pixels beyond {picture}'
    if x2 - x1 < 1 or y2 - y1 < 1:
        size = f'{x2 - x1:g} x {y2 - y1:g}'
        return 'box without area', f'the box {text} is {size} pixels, less than one pixel thick'
    if beyond > ROUNDING:
        return 'box at the edge', f'the box {text} reaches {beyond:g} pixels beyond {picture}'
    return None
