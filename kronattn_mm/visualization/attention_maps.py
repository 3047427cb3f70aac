"""The global attention maps of an inserted layer: recorded as a model predicts, and chosen among.

Paper: "Efficient Attention" (arXiv 1812.01243), section 3.4, where each row of the normalised keys
is a global attention map, and Figure 3, which shows three of the maps at fpn1. The paper does not
say how its three were chosen; :func:`select_distinct` is this package's rule.

Nothing here draws; see :mod:`.attention_picture`.
"""

import difflib
from types import TracebackType
from typing import Any

import numpy as np
import torch
from mmengine.model import is_model_wrapper
from torch import Tensor, nn

from ..plugging import Insertion, inserted_layers, insertion_shapes

# A map whose weights vary by less than this part of their mean is as good as even.
EVEN = 0.01


class AttentionMapError(ValueError):
    """There are no maps to show: wrong layer, or a layer that does not see whole images."""


def showable_layers(model: nn.Module) -> dict[str, Insertion]:
    """Return those inserted layers that have global attention maps over images.

    Args:
        model (nn.Module): A detector, segmenter or classifier.

    Returns:
        dict[str, Insertion]: By the names of :func:`kronattn_mm.inserted_layers`.
    """
    return {
        name: insertion
        for name, insertion in inserted_layers(model).items()
        if hasattr(insertion.layer, 'attention_maps')
        and getattr(insertion.layer, 'spatial_dims', 2) == 2
    }


def choose_layer(model: nn.Module, name: str | None = None) -> str:
    """Check the name of a layer to show, or choose the one with the finest maps.

    Args:
        model (nn.Module): A detector, segmenter or classifier.
        name (str, optional): Name as in :func:`kronattn_mm.inserted_layers`. Defaults to None:
            the layer with the largest feature map, among equals the last one in the model (a
            neck's, which the paper shows, comes after the backbone's).

    Returns:
        str: The name.

    Raises:
        AttentionMapError: If the model has no such layer, or the layer has no global maps; the
            message names those that can be shown.
    """
    inserted = inserted_layers(model)
    showable = showable_layers(model)
    if not inserted:
        raise AttentionMapError(
            f'{type(model).__name__} has no inserted layers, so there is no '
            'attention to show; see kronattn_mm.Plugged'
        )
    choices = f'layers that can be shown: {", ".join(showable) or "none"}'
    if name is not None and name not in inserted:
        near = difflib.get_close_matches(name, showable, n=1)
        hint = f'did you mean {near[0]!r}? ' if near else ''
        raise AttentionMapError(f'there is no inserted layer {name!r}; {hint}{choices}')
    if name is not None and name not in showable:
        kind = type(inserted[name].layer).__name__
        why = ': in it each position attends in its own way' if kind == 'RegularAttention2d' else ''
        raise AttentionMapError(
            f'{name!r} is a {kind}, which has no global attention maps{why}; {choices}'
        )
    if name is not None:
        return name
    if not showable:
        kinds = sorted({type(insertion.layer).__name__ for insertion in inserted.values()})
        raise AttentionMapError(
            f'none of the inserted layers ({", ".join(kinds)}) has global '
            'attention maps; EfficientAttention2d has'
        )
    try:
        shapes = insertion_shapes(model, (256, 256))
    except (TypeError, ValueError) as error:
        raise AttentionMapError(
            f'which layer has the finest maps could not be found out ({error}); name one. {choices}'
        ) from error
    areas = {layer: np.prod(shapes.get(layer, (0,))[2:]) for layer in showable}
    return max(reversed(areas), key=areas.get)


class MapRecorder:
    """Records the attention maps of one layer while the model runs; a context manager.

    Only the first call of the layer counts, so that what a head does on level after level, or a
    segmenter on window after window, gives one set of maps. They are computed when the layer is
    called, because what the layer was given may be overwritten or freed afterwards.

    Args:
        model (nn.Module): The model, or a wrapper of it (DistributedDataParallel).
        name (str): Layer, as :func:`choose_layer` returns it.
        num_images (int, optional): How many images of the batch. Defaults to None, all.

    Attributes:
        maps (Tensor, optional): ``(N, num_heads, maps, h, w)`` in float32 on the CPU, None before
            the layer has run.
        network_shape (tuple[int, int], optional): Height and width, in pixels, of the padded
            images that the backbone got.
    """

    def __init__(self, model: nn.Module, name: str, num_images: int | None = None) -> None:
        self.model = model.module if is_model_wrapper(model) else model
        self.name = name
        self.layer = inserted_layers(self.model)[name].layer
        self.num_images = num_images
        self.maps: Tensor | None = None
        self.network_shape: tuple[int, int] | None = None
        self._batch_size: int | None = None
        self._whole_images = False
        self._handles: list[Any] = []

    def __enter__(self) -> 'MapRecorder':
        # What the backbone gets is padded (all libraries) and cut into windows (mmseg's sliding
        # inference); the maps lie over that, not over the image.
        network = getattr(self.model, 'backbone', self.model)
        self._handles = [
            network.register_forward_pre_hook(self._record_images, with_kwargs=True),
            self.layer.register_forward_pre_hook(self._record_maps),
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def check(self) -> None:
        """Raise AttentionMapError unless maps over images have been recorded."""
        if self.maps is None or self.network_shape is None:
            raise AttentionMapError(
                f'the layer {self.name!r} was not called while the model '
                'predicted (heads that only help training are not)'
            )
        if not self._whole_images:
            raise AttentionMapError(
                f'the layer {self.name!r} does not see whole images: it got '
                f'{len(self.maps)} feature maps for {self._batch_size} images'
            )

    def _record_images(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if self.network_shape is None:
            for value in (*args, *kwargs.values()):
                if isinstance(value, Tensor) and value.dim() == 4:
                    self._batch_size = len(value)
                    self.network_shape = tuple(value.shape[2:])
                    return

    def _record_maps(self, module: nn.Module, args: tuple) -> None:
        if self.maps is not None:
            return
        x = args[0].detach()
        self._whole_images = len(x) == self._batch_size
        if self._whole_images:
            x = x[: self.num_images]
        weight = next(module.parameters(), x)
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            self.maps = module.attention_maps(x.to(weight.dtype)).float().cpu()


def shown_region(
    inputs_shape: tuple[int, int], network_shape: tuple[int, int], metainfo: dict[str, Any]
) -> tuple[int, int]:
    """Return height and width of the part, from the top left corner, that is image and was seen.

    What the libraries pad lies at the right and at the bottom. The batch's padding is the
    difference between ``network_shape`` and ``inputs_shape``; a ``Pad`` in the pipeline also
    enlarges ``img_shape``, and shows only against ``ori_shape`` times ``scale_factor``.

    Args:
        inputs_shape (tuple[int, int]): Height and width that came out of the pipeline.
        network_shape (tuple[int, int]): Height and width that the backbone got.
        metainfo (dict): Of the image's data sample.
    """
    height, width = (min(pair) for pair in zip(inputs_shape, network_shape, strict=True))
    scale = metainfo.get('scale_factor')
    if metainfo.get('ori_shape') is not None and np.size(scale) == 2 and scale is not None:
        original_height, original_width = metainfo['ori_shape'][:2]
        height = min(height, max(1, round(original_height * float(scale[1]))))
        width = min(width, max(1, round(original_width * float(scale[0]))))
    return height, width


def crop_maps(maps: Tensor, network_shape: tuple[int, int], region: tuple[int, int]) -> Tensor:
    """Cut the padding off maps at their own resolution, to the nearest cell.

    Args:
        maps (Tensor): ``(..., h, w)`` over an image of ``network_shape``.
        network_shape (tuple[int, int]): Height and width in pixels, padding included.
        region (tuple[int, int]): Height and width in pixels of what to keep.

    Returns:
        Tensor: ``(..., h', w')``, at least one cell.
    """
    rows, columns = (
        max(1, round(cells * kept / whole))
        for cells, kept, whole in zip(maps.shape[-2:], region, network_shape, strict=True)
    )
    return maps[..., :rows, :columns]


def select_distinct(maps: Tensor, count: int) -> list[int]:
    """Choose the most distinct maps, the most distinct first; deterministic.

    The first is the map with the largest contrast, its standard deviation over its mean magnitude.
    Each next one is that whose largest cosine similarity with those chosen before is smallest,
    after each map's mean has been taken off: a map and its negative (foreground and background)
    are as distinct as can be, a map and a brighter copy of it are the same. Maps that are even to
    within one percent show nothing and come last. Equals come in the order of the maps.

    Args:
        maps (Tensor): ``(M, h, w)``.
        count (int): How many are wanted; all, if there are fewer.

    Returns:
        list[int]: Indices of maps.

    Raises:
        ValueError: If ``maps`` has another number of dimensions or ``count`` is less than one.
    """
    if maps.dim() != 3:
        raise ValueError(f'maps must have the shape (M, h, w), got {tuple(maps.shape)}')
    if count < 1:
        raise ValueError(f'count must be at least 1, got {count}')
    rows = maps.flatten(1).double().numpy()
    centred = rows - rows.mean(axis=1, keepdims=True)
    deviation = centred.std(axis=1)
    magnitude = np.abs(rows).mean(axis=1)
    contrast = np.divide(deviation, magnitude, out=np.zeros_like(deviation), where=magnitude > 0)
    uneven = np.flatnonzero(contrast >= EVEN)
    chosen: list[int] = []
    if len(uneven):
        norms = np.linalg.norm(centred, axis=1)
        similarity = centred[uneven] / norms[uneven, None]
        similarity = similarity @ similarity.T
        first = int(contrast[uneven].argmax())
        order = [first]
        nearest = similarity[first].copy()
        while len(order) < min(count, len(uneven)):
            nearest[order] = np.inf
            following = int(nearest.argmin())
            order.append(following)
            nearest = np.maximum(nearest, similarity[following])
        chosen = [int(uneven[index]) for index in order]
    even = np.flatnonzero(contrast < EVEN)
    return (chosen + even[np.argsort(-contrast[even], kind='stable')].tolist())[:count]
