"""Trunk and branch of an attended convolution meeting after the norm that follows it.

The convolution cannot do that by itself. ``ConvModule``, of which the OpenMMLab backbones with
inverted residuals are made, runs convolution, norm and activation in one; here it is told to leave
out the activation, and a forward hook on it adds the branch and activates. The hook is a bound
method and sits on neither convolution nor norm, so it survives copies, SyncBN conversion and
fusing.
"""

from typing import Any

from torch import Tensor, nn

from ..layers.attended_conv import BranchedConv


class SumAfterNorm:
    """Combines a convolution's branch with the output of the norm after it.

    Args:
        module (ConvModule): Convolution, norm and perhaps activation, in this order.
        name (str): Name of the convolution in the module.
        replacement (Replacement): The convolution and its switch.

    Raises:
        ValueError: If ``module`` is no ``ConvModule`` of that order, or has no norm.
    """

    def __init__(self, module: nn.Module, name: str, replacement: Any) -> None:
        if (
            getattr(module, 'order', None) != ('conv', 'norm', 'act')
            or name != 'conv'
            or not getattr(module, 'with_norm', False)
        ):
            raise ValueError(
                "place='after_norm' needs a ConvModule of a convolution, a norm and "
                'an activation, in this order; the convolution is '
                f'{name!r} of a {type(module).__name__}'
            )
        self.replacement = replacement
        self.activates = module.with_activation
        module.with_activation = False
        replacement.conv.joined = True
        self._handle = module.register_forward_hook(self.apply, with_kwargs=True)

    def apply(
        self, module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Tensor
    ) -> Tensor:
        """Forward hook of the module: its input is the convolution's, its output the norm's."""
        x, activate = _called_with(*args, **kwargs)
        switch = self.replacement
        if switch.enabled:
            conv: BranchedConv = switch.conv
            joined = conv.combine(output, conv.attention(x))
            output = joined if switch.scale == 1 else output + switch.scale * (joined - output)
        return module.activate(output) if activate and self.activates else output

    def undo(self, module: nn.Module) -> None:
        """Leave ``module`` as it was."""
        self._handle.remove()
        module.with_activation = self.activates


def _called_with(x: Tensor, activate: bool = True, norm: bool = True) -> tuple[Tensor, bool]:
    """Take the arguments of a call of ``ConvModule`` apart; without its norm the sum stays."""
    return x, activate
