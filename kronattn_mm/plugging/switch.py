"""What an inserted layer and a replaced convolution have in common: they can be switched off.

The two settings are plain Python attributes that the forward pass reads. They are not in the
``state_dict``; copies and pickles carry them; torch.compile guards on them and compiles anew when
they change; torch.export leaves out what is off.
"""

import contextlib
from collections.abc import Iterable, Iterator

from torch import nn


class Switch:
    """Whether something that was added to a module takes part, and how strongly.

    Attributes:
        enabled (bool): If False, the module computes what it computes without the addition.
        scale (float): What the addition changes is multiplied by this; 1 is the method itself,
            0 computes the plain result and throws the addition away.
        norm_eval (bool): Batch norms in it stay in eval mode.
    """

    enabled: bool = True
    scale: float = 1.0
    norm_eval: bool = False

    @property
    def module(self) -> nn.Module:
        """What was put in: the layer, or the convolution."""
        raise NotImplementedError(f'{type(self).__name__} does not define module')


@contextlib.contextmanager
def all_on(parts: Iterable[Switch]) -> Iterator[None]:
    """Have all ``parts`` on at full strength inside, and as they were afterwards."""
    before = [(part, part.enabled, part.scale) for part in parts]
    try:
        for part, _, _ in before:
            part.enabled, part.scale = True, 1.0
        yield
    finally:
        for part, enabled, scale in before:
            part.enabled, part.scale = enabled, scale
