"""What of a model goes into a graph: one module from images to tensors with names.

A classifier gives its scores, a segmenter the scores of its decode head at the head's own stride,
a single-stage detector the raw outputs of its head, level by level. What comes after (softmax,
anchors, thresholds, suppression of overlapping boxes) is left to the program that runs the graph. A
second stage works on regions that the first one found, which no fixed graph has: of such a
detector, backbone and neck are exported.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..modes import inference_mode_of

PARTS = ('outputs', 'features')
# By library and class, so that no library has to be imported for a model that is not there.
_KINDS = {
    'mmpretrain.ImageClassifier': 'classifier',
    'mmseg.EncoderDecoder': 'segmenter',
    'mmdet.SingleStageDetector': 'single-stage detector',
    'mmdet.TwoStageDetector': 'two-stage detector',
}
_WITH_OUTPUTS = ('classifier', 'segmenter', 'single-stage detector')
# Heads whose first two outputs are known to be scores and boxes.
_BOX_HEADS = ('mmdet.AnchorHead', 'mmdet.AnchorFreeHead')
_BOX_OUTPUTS = ('cls_score', 'bbox_pred')


class Deployed(nn.Module):
    """Takes images and returns a tuple of tensors.

    Args:
        model (nn.Module): A model of mmdet, mmseg or mmpretrain.
        part (str): ``'outputs'`` of its head, or ``'features'`` of its backbone and neck.
        preprocessing (nn.Module, optional): Called with the images first. Defaults to None.
    """

    def __init__(
        self, model: nn.Module, part: str = 'outputs', preprocessing: nn.Module | None = None
    ) -> None:
        super().__init__()
        if part not in PARTS:
            raise ValueError(f'part must be one of {", ".join(map(repr, PARTS))}, got {part!r}')
        self.part = part
        self.preprocessing = nn.Identity() if preprocessing is None else preprocessing
        self.model = model
        # Of each tensor, in order; :func:`deployed` fills them in, as only a call can tell.
        self.names: tuple[str, ...] = ()

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors for ``image`` of shape ``(N, 3, H, W)``."""
        return tuple(tensor for _, tensor in self.named(image))

    def named(self, image: Tensor) -> list[tuple[str, Tensor]]:
        """Return the same with their names."""
        x = self.preprocessing(image)
        if self.part == 'features':
            return list(_named(self.model.extract_feat(x), 'level', ''))
        output = self.model(x, None, mode='tensor')
        if isinstance(output, Tensor):
            return [('scores', output)]
        head = getattr(self.model, 'bbox_head', None)
        known = _BOX_OUTPUTS if any(name in _BOX_HEADS for name in _classes(head)) else ()
        if not known or len(output) < len(known):
            return list(_named(output, 'output', ''))
        words = [*known, *(f'output{number}' for number in range(len(known), len(output)))]
        return [
            named
            for word, group in zip(words, output, strict=True)
            for named in _named(group, f'{word}_', word)
        ]


def kind_of(model: nn.Module) -> str:
    """Return ``'classifier'``, ``'segmenter'``, ``'single-stage detector'``, ``'two-stage
    detector'``, or the name of the class for another."""
    for name in _classes(model):
        if name in _KINDS:
            return _KINDS[name]
    return type(model).__name__


def choose_part(model: nn.Module, asked: str | None = None) -> tuple[str, str]:
    """Choose what of a model is exported.

    Args:
        model (nn.Module): A model of mmdet, mmseg or mmpretrain.
        asked (str, optional): ``'outputs'`` or ``'features'``. Defaults to None: the outputs of
            models that can be exported with their head, the features of others.

    Returns:
        tuple[str, str]: The part, and a sentence where it is less than the whole model.

    Raises:
        TypeError: If a model has no features to export.
        ValueError: If the outputs are asked for and cannot be exported.
    """
    kind = kind_of(model)
    if asked != 'features' and kind in _WITH_OUTPUTS:
        return 'outputs', ''
    if not hasattr(model, 'extract_feat'):
        raise TypeError(f'{type(model).__name__} has no extract_feat, so it cannot be exported')
    why = (
        'its second stage works on regions that the first one finds'
        if kind == 'two-stage detector'
        else 'only the heads of classifiers, segmenters and single-stage detectors are known'
    )
    sentence = f'of {type(model).__name__}, backbone and neck are what is exported: {why}'
    if asked == 'outputs':
        raise ValueError(f'{sentence}; leave --part out, or give --part features')
    return 'features', '' if asked == 'features' else sentence


def deployed(
    model: nn.Module,
    example: Tensor,
    part: str | None = None,
    preprocessing: nn.Module | None = None,
) -> Deployed:
    """Make a module of the part of a model that is exported, in eval mode.

    Args:
        model (nn.Module): A model of mmdet, mmseg or mmpretrain. It is not copied.
        example (Tensor): Images that it can take, ``(N, 3, H, W)``.
        part (str, optional): See :func:`choose_part`. Defaults to None.
        preprocessing (nn.Module, optional): Made part of the graph. Defaults to None.

    Raises:
        TypeError, ValueError: See :func:`choose_part`; also if the model cannot take the example.
    """
    from mmengine.model import revert_sync_batchnorm

    result = Deployed(revert_sync_batchnorm(model), choose_part(model, part)[0], preprocessing)
    result.eval()
    with inference_mode_of(result):
        try:
            result.names = tuple(name for name, _ in result.named(example))
        except Exception as error:  # whatever a model raises that cannot take this size
            raise ValueError(
                f'{type(model).__name__} cannot take images of the shape '
                f'{tuple(example.shape)}: {" ".join(str(error).split())[:300]}'
            ) from error
    return result


def _named(output: Any, prefix: str, alone: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors in tuples, lists and dicts, numbered; one that is not in any has a name for that."""
    if isinstance(output, Tensor):
        yield alone or f'{prefix}0', output
        return
    items = output.items() if isinstance(output, dict) else enumerate(output or ())
    for number, item in items:
        if isinstance(item, torch.Tensor):
            yield f'{prefix}{number}', item
        else:
            yield from _named(item, f'{prefix}{number}_', '')


def _classes(module: nn.Module | None) -> list[str]:
    return [f'{cls.__module__.partition(".")[0]}.{cls.__name__}' for cls in type(module).__mro__]
