"""What chosen modules of a model see of a picture."""

from collections.abc import Mapping, Sequence

import torch
from mmengine.runner.checkpoint import load_state_dict
from torch import Tensor, nn

from ..cost.config import quiet
from ..plugging.probe import evaluating
from .checkpoint import ConversionError


class _Recorder:
    """Keeps the first input of one module."""

    def __init__(self, path: str, maps: dict[str, Tensor]) -> None:
        self.path = path
        self.maps = maps

    def __call__(self, module: nn.Module, args: tuple) -> None:
        self.maps.setdefault(self.path, args[0].detach())


def maps_at(
    model: nn.Module, state: Mapping[str, Tensor], paths: Sequence[str], image: str
) -> dict[str, Tensor]:
    """Run a detector or segmenter with trained weights on a picture.

    Args:
        model (nn.Module): A whole model.
        state (Mapping[str, Tensor]): Its weights.
        paths (Sequence[str]): Modules in its backbone, neck or decode head.
        image (str): A picture, taken at its own size.

    Returns:
        dict[str, Tensor]: What each module got as its input.

    Raises:
        ConversionError: If the picture cannot be read, or a module is not reached by the features
            of a picture.
    """
    import mmcv

    try:
        picture = mmcv.imread(image)
    except Exception as error:  # OpenCV's own kinds
        raise ConversionError(f'{image} cannot be read as a picture: {error}') from error
    if picture is None:
        raise ConversionError(f'{image} cannot be read as a picture')
    maps: dict[str, Tensor] = {}
    handles = [
        model.get_submodule(path).register_forward_pre_hook(_Recorder(path, maps)) for path in paths
    ]
    try:
        with quiet(), evaluating(model), torch.no_grad():
            load_state_dict(model, dict(state), strict=False)
            pixels = torch.from_numpy(picture).permute(2, 0, 1).contiguous()
            inputs = model.data_preprocessor(dict(inputs=[pixels], data_samples=None))['inputs']
            features = model.extract_feat(inputs)
            head = getattr(model, 'decode_head', None)
            if head is not None:
                head(features)
    finally:
        for handle in handles:
            handle.remove()
    for path in paths:
        if path not in maps:
            raise ConversionError(
                f'the block at {path!r} is not reached by the features of a '
                'picture; --compare without IMAGE takes random maps'
            )
    return maps
