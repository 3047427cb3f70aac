"""Find out what comes out of the modules inside a backbone, neck or head by running it once.

Reading channel counts off constructor arguments goes wrong wherever a class computes its widths
(ResNeXt, Res2Net); running the built module cannot. The run is a small one, on zeros, in eval mode
and without gradients; it leaves the training flags and the random number generators as they were.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..modes import inference_mode_of

Shapes = tuple[int, ...] | list[tuple[int, ...] | None]
_SIZES = (64, 128, 224, 320, 512)


class ProbeError(RuntimeError):
    """The module could not be run on any input that fits its arguments."""


def output_shapes(
    module: nn.Module, paths: Sequence[str], arguments: dict[str, Any], skip_sizes: int = 0
) -> dict[str, Shapes]:
    """Run ``module`` once and report the shapes that its submodules return.

    Args:
        module (nn.Module): A built backbone, neck or head.
        paths (Sequence[str]): Dotted paths of the submodules; the empty path is the module.
        arguments (dict): What the module was constructed with, for the shape of its input.
        skip_sizes (int): How many of the input sizes that work to pass over. Defaults to 0.

    Returns:
        dict[str, Shapes]: For each path that was reached, the shape of the tensor that the module
        returned, or a list of shapes where it returned several things (None for what is not a
        tensor).

    Raises:
        ProbeError: If no input worked; the message holds the last error.
        SeveralWidths: If one of the submodules returns different numbers of channels.
    """
    shapes: dict[str, Shapes] = {}
    recorders = {path: _Recorder(path, shapes) for path in paths}
    modules = dict(module.named_modules())
    error: Exception | None = None
    for inputs in _inputs(module, arguments):
        shapes.clear()
        handles = [
            modules[path].register_forward_hook(recorder.record, prepend=True)
            for path, recorder in recorders.items()
        ]
        try:
            with evaluating(module):
                module(inputs)
        except SeveralWidths:
            raise
        except Exception as failure:  # any error of foreign code means: not this input
            error = failure
            continue
        finally:
            for handle in handles:
                handle.remove()
        if skip_sizes == 0:
            return dict(shapes)
        skip_sizes -= 1
    raise ProbeError(f'{type(module).__name__} could not be run on zeros: {error!r}')


class SeveralWidths(ValueError):
    """A module is used several times with different numbers of channels."""


class _Recorder:
    """Writes down the shape of what one module returned."""

    def __init__(self, path: str, shapes: dict[str, Shapes]) -> None:
        self.path = path
        self.shapes = shapes

    def record(self, module: nn.Module, args: tuple, output: Any) -> None:
        if isinstance(output, Tensor):
            before = self.shapes.get(self.path)
            if isinstance(before, tuple) and before[1:2] != output.shape[1:2]:
                raise SeveralWidths(
                    f'{self.path!r} is called several times in one forward pass '
                    f'and returns {before[1]} and {output.shape[1]} channels, so '
                    'that no one layer fits'
                )
            self.shapes[self.path] = tuple(output.shape)
        elif isinstance(output, (tuple, list)):
            self.shapes[self.path] = [
                tuple(item.shape) if isinstance(item, Tensor) else None for item in output
            ]


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put ``module`` into eval mode without gradients, and everything back afterwards.

    The random number generators as well, so that building a model with insertions draws the same
    weights for the rest of it as without.
    """
    with inference_mode_of(module), torch.random.fork_rng(devices=[]):
        yield


def _inputs(module: nn.Module, arguments: dict[str, Any]) -> Iterator[Any]:
    """Yield inputs that modules of the OpenMMLab libraries take, the likeliest first.

    A module that takes something else, or for which the usual sizes are too much, says what it
    takes by a method ``example_inputs`` of its own.
    """
    if hasattr(module, 'example_inputs'):
        yield from module.example_inputs()
        return
    parameter = next(module.parameters(), torch.zeros(()))
    channels = arguments.get('in_channels')
    if channels is None and isinstance(getattr(module, 'in_channels', None), (tuple, list)):
        channels = module.in_channels

    def zeros(width: int, size: int) -> Tensor:
        return torch.zeros(
            1, width, max(size, 1), max(size, 1), device=parameter.device, dtype=parameter.dtype
        )

    sizes = list(_SIZES)
    roi_size = getattr(module, 'roi_feat_size', None)  # heads on RoI features have a fixed size
    if roi_size is not None:
        sizes.insert(0, roi_size[0] if isinstance(roi_size, (tuple, list)) else roi_size)
    in_index = arguments.get('in_index', getattr(module, 'in_index', None))
    for size in sizes:
        if isinstance(channels, (tuple, list)):
            yield [zeros(width, size >> level) for level, width in enumerate(channels)]
            continue
        if isinstance(in_index, int):  # mmseg's heads pick one of several maps
            width = channels if isinstance(channels, int) else _first_channels(module)
            yield [zeros(width, size // 8)] * (in_index + 1 if in_index >= 0 else 1)
            continue
        # The first convolution tells what an image has, unless something is folded before it.
        widths = [channels] if isinstance(channels, int) else [_first_channels(module), 3]
        for width in dict.fromkeys(widths):
            levels = _levels(module)
            if levels:
                yield [zeros(width, size >> level) for level in range(levels)]
            # A tuple comes first: heads on pyramids iterate over what they get, and would take the
            # images of a single tensor for levels; whatever expects a tensor refuses a tuple.
            yield (zeros(width, size // 8),)
            yield zeros(width, size)


def _levels(module: nn.Module) -> int:
    """Return how many pyramid levels a module works on, 0 if it does not say."""
    levels = getattr(getattr(module, 'prior_generator', None), 'num_levels', None)
    if levels is None:
        levels = getattr(module, 'num_levels', None)
    return levels if isinstance(levels, int) else 0


def _first_channels(module: nn.Module) -> int:
    for child in module.modules():
        if isinstance(child, nn.modules.conv._ConvNd):
            return child.in_channels
    return 3
