"""A hook that says at the start of a run what was inserted and in which state it is."""

from collections.abc import Sequence

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner

from ..registry import HOOKS


@HOOKS.register_module()
class AttentionStatusHook(Hook):
    """Log a table of everything that ``Plugged`` put into the model, when a run begins.

    Point, layer, feature map, parameters, multiply-accumulates, share of the model, on or off,
    trained or frozen, and how its norms run: the rows of :func:`kronattn_mm.attention_status`.
    The run itself computes the same numbers as without the hook.

    Args:
        image_shape (Sequence[int], optional): Height and width of an image after resizing, in
            pixels. Defaults to None: what the test pipeline of the config resizes to.

    Raises:
        TypeError: If ``image_shape`` is not a pair of integers.
    """

    priority = 'LOW'  # after whatever freezes or switches

    def __init__(self, image_shape: Sequence[int] | None = None) -> None:
        if image_shape is not None and not (
            isinstance(image_shape, Sequence)
            and len(image_shape) == 2
            and all(isinstance(side, int) and side > 0 for side in image_shape)
        ):
            raise TypeError(f'image_shape must be height and width in pixels, got {image_shape!r}')
        self.image_shape = image_shape

    def before_run(self, runner: Runner) -> None:
        """Log the table."""
        from ..cost.config import default_image_shape, quiet
        from ..listing.status import status_text

        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        shape = self.image_shape
        source = 'image_shape'
        if shape is None and runner.cfg.get('model') is not None:
            shape, source = default_image_shape(runner.cfg)
        try:
            with quiet():
                text = status_text(model, None if shape is None else tuple(shape))
        except (TypeError, ValueError) as error:
            # Which image it is tried on is a guess here; a run does not end for a table's sake.
            source = f'no shapes: {error}'
            text = status_text(model)
        else:
            source = f'one image of {shape[0]} x {shape[1]}; {source}' if shape else 'no image'
        print_log(f'inserted layers ({source}):\n{text}', 'current')
