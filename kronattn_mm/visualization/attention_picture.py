"""One picture for one image: the image, and the most distinct attention maps over it.

mmengine's ``Visualizer.draw_featmap`` is not used: it picks the maps with the largest sums, and
these all sum to one; and it colours with jet, whose bands suggest edges that are not there.
"""

import math
import textwrap
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .attention_maps import crop_maps, select_distinct

COLOR_MAP = 'inferno'
PERCENTILES = (1, 99)
_OPACITY = (0.35, 0.8)
_QUIET = '#505050'
_DPI = 110
_LEAST_WIDTH = 7  # inches, for the heading
_LUMA = (0.299, 0.587, 0.114)


def network_image(inputs: Tensor) -> np.ndarray:
    """Turn what a test pipeline gives into a picture.

    Args:
        inputs (Tensor): ``(C, H, W)``; as in all OpenMMLab pipelines blue comes first. Images
            that the pipeline has normalised already are stretched to the full range.

    Returns:
        np.ndarray: RGB, ``(H, W, 3)``, uint8.
    """
    image = inputs.detach().cpu().float()
    image = image[[2, 1, 0]] if len(image) >= 3 else image[:1].expand(3, -1, -1)
    low, high = float(image.min()), float(image.max())
    normalised = inputs.is_floating_point() and (low < 0 or high <= 1 or high > 255)
    if normalised and high > low:
        image = (image - low) / (high - low) * 255
    return image.clamp(0, 255).round().byte().permute(1, 2, 0).numpy()


def draw_attention(
    image: np.ndarray,
    maps: Tensor,
    network_shape: tuple[int, int],
    layer: str,
    title: str = '',
    count: int = 6,
    warning: str = '',
) -> np.ndarray:
    """Draw an image and, over it, its most distinct attention maps, the most distinct first.

    The colours of each map run from its 1st to its 99th percentile on the image. For maps that sum
    to one the caption gives both as multiples of the weight that an even map would have.

    Args:
        image (np.ndarray): RGB, ``(H, W, 3)``, uint8: the part of the network's input that is
            image, which lies in its top left corner.
        maps (Tensor): ``(num_heads, maps, h, w)`` over the padded input.
        network_shape (tuple[int, int]): Height and width of the padded input in pixels.
        layer (str): Name of the layer, for the heading.
        title (str): What the image is, for the heading. Defaults to ''.
        count (int): Number of maps to show. Defaults to 6.
        warning (str): Sentence printed in red under the heading. Defaults to ''.

    Returns:
        np.ndarray: The picture, RGB uint8.

    Raises:
        ValueError: If ``maps`` or ``image`` has another shape or ``count`` is less than one.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if maps.dim() != 4:
        raise ValueError(f'maps must be (num_heads, maps, h, w), got {tuple(maps.shape)}')
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise ValueError(f'image must be (H, W, 3) in uint8, got {image.shape} in {image.dtype}')
    heads, per_head = maps.shape[:2]
    flat = maps.flatten(0, 1).float()
    region = image.shape[:2]
    order = select_distinct(crop_maps(flat, network_shape, region), count)
    overlays = _on_image(flat[order], network_shape, region)
    sums_to_one = bool((flat >= 0).all()) and torch.allclose(
        flat.sum(dim=(1, 2)), torch.ones(len(flat)), atol=1e-3
    )
    unit = flat[0].numel() if sums_to_one else 1

    rows, columns, width, height = _arrange(len(order) + 1, region)
    head, foot, caption, gap = (0.40 if not warning else 0.62), 0.60, 0.46, 0.12
    size = (
        max(columns * (width + gap) + gap, _LEAST_WIDTH),
        rows * (height + caption + gap) + head + foot,
    )
    figure = Figure(figsize=size, dpi=_DPI, facecolor='white')
    canvas = FigureCanvasAgg(figure)

    def axes_at(left: float, top: float, wide: float, high: float) -> Any:
        # inches from the top left corner, because what has to fit is text of a given size
        return figure.add_axes(
            (left / size[0], 1 - (top + high) / size[1], wide / size[0], high / size[1])
        )

    def write(left: float, top: float, text: str, **style: Any) -> Any:
        return figure.text(left / size[0], 1 - top / size[1], text, va='top', **style)

    grey = np.repeat((image @ np.array(_LUMA))[..., None] / 255, 3, axis=2)
    for place in range(len(order) + 1):
        row, column = divmod(place, columns)
        left, top = gap + column * (width + gap), head + row * (height + caption + gap)
        axes = axes_at(left, top + caption, width, height)
        axes.set_axis_off()
        axes.set_anchor('NW')
        if place == 0:
            axes.imshow(image, interpolation='antialiased')
            write(left, top + 0.06, 'image', fontsize=10)
            continue
        weights = overlays[place - 1] * unit
        low, high = np.percentile(weights, PERCENTILES)
        axes.imshow(_blend(grey, weights, low, high), interpolation='antialiased')
        name = f'map {order[place - 1] % per_head}'
        if heads > 1:
            name = f'head {order[place - 1] // per_head}, {name}'
        span = f'{_short(low)} to {_short(high)}' + (' × even' if sums_to_one else '')
        write(left, top + 0.06, name, fontsize=10)
        write(left, top + 0.26, span, fontsize=8, color=_QUIET)

    cells = f'{maps.shape[2]} × {maps.shape[3]} cells'
    count_note = f'{len(order)} of {len(flat)} maps, most distinct first'
    heading = write(gap, 0.11, '', fontsize=11, weight='bold')
    _fit(heading, [title, layer, cells, count_note], size[0] - 2 * gap)
    if warning:
        _fit(write(gap, 0.36, '', fontsize=9, color='#b00020'), [warning], size[0] - 2 * gap)
    bar = axes_at(gap + 0.35, size[1] - foot + 0.2, 1.2, 0.13)
    ramp = np.tile(np.linspace(0, 1, 256), (8, 1))
    bar.imshow(_blend(np.full((8, 256, 3), 0.5), ramp, 0, 1), aspect='auto')
    bar.set_xticks([])
    bar.set_yticks([])
    bar.text(-0.05, 0.5, 'low', transform=bar.transAxes, ha='right', va='center', fontsize=8)
    bar.text(1.05, 0.5, 'high', transform=bar.transAxes, ha='left', va='center', fontsize=8)
    note = (
        'Each map sums to 1 over all positions, padding included; 1 × even: the same weight '
        'everywhere. '
        if sums_to_one
        else 'Maps as computed; they do not sum to 1. '
    )
    note += f'Colours of each map: percentiles {PERCENTILES[0]} to {PERCENTILES[1]}.'
    lines = textwrap.wrap(note, int((size[0] - 2.3 - gap) * 16))
    figure.text(
        (gap + 2.0) / size[0],
        (foot - 0.265) / size[1],
        '\n'.join(lines),
        va='center',
        fontsize=8,
        color=_QUIET,
        linespacing=1.15,
    )
    canvas.draw()
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])


def _on_image(maps: Tensor, network_shape: tuple[int, int], region: tuple[int, int]) -> np.ndarray:
    # Resize first and crop then: cells and pixels coincide only over the padded input.
    resized = F.interpolate(maps[None], network_shape, mode='bilinear', align_corners=False)[0]
    return resized[:, : region[0], : region[1]].numpy()


def _blend(grey: np.ndarray, weights: np.ndarray, low: float, high: float) -> np.ndarray:
    from matplotlib import colormaps

    scaled = np.clip((weights - low) / (high - low), 0, 1) if high > low else np.zeros_like(weights)
    # More opaque where there is more attention: elsewhere the image stays recognisable.
    opacity = (_OPACITY[0] + (_OPACITY[1] - _OPACITY[0]) * scaled)[..., None]
    return opacity * colormaps[COLOR_MAP](scaled)[..., :3] + (1 - opacity) * grey


def _arrange(panels: int, region: tuple[int, int]) -> tuple[int, int, float, float]:
    """Return rows, columns and the size of a panel in inches: near 2:1, few places empty."""
    aspect = min(max(region[1] / region[0], 0.4), 4)
    width = max(2.2, min(math.sqrt(7.5 * aspect), 4.5))
    height = width / aspect

    def badness(columns: int) -> float:
        rows = math.ceil(panels / columns)
        empty = (rows * columns - panels) / panels
        return abs(math.log(columns * width / (rows * height) / 2)) + empty

    columns = min(range(min(panels, 2), panels + 1), key=badness)
    return math.ceil(panels / columns), columns, width, height


def _short(value: float) -> str:
    size = abs(value)
    return f'{value:.2f}' if size < 1 else f'{value:.1f}' if size < 10 else f'{value:.0f}'


def _fit(text: Any, parts: list[str], inches: float) -> None:
    """Write ``parts`` into a text of the figure; cut the first, then shrink, until they fit."""
    first, *rest = parts
    for letters in range(len(first), -1, -1):
        shown = first if letters == len(first) else f'…{first[len(first) - letters :]}'
        text.set_text(' · '.join(part for part in [shown, *rest] if part))
        if text.get_window_extent().width <= inches * _DPI:
            return
    text.set_fontsize(text.get_fontsize() * inches * _DPI / text.get_window_extent().width)
