"""How saturated the gates of attended convolutions are, and how large lambda is.

Paper: "Shift-and-Balance Attention" (arXiv 2103.13080), equations 3 to 5 and their counterpart for
equation 6. With z = F(x), what the gate is applied to, and g for the gate, the gradient of the loss
with respect to x is dl/dy times the sum of two terms:

===================  ================================  ====================
                     through the attention branch      through the trunk
===================  ================================  ====================
scaled, y = A T      g'(z) T dz/dx       (equation 4)  g(z) dT/dx    (equation 5)
shift, y = T + lA    lambda g'(z) dz/dx                dT/dx
===================  ================================  ====================

The factors in front of dz/dx and dT/dx are what is measured here, for each channel and image; that
of equation 4 has T in it, which varies over the map, and the mean of its absolute values is taken.
A term vanishes where its factor is below a threshold; the gradient does where both are.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..layers.attended_conv import BranchedConv
from ..layers.attention_branch import AttentionBranch, apply_gate
from ..layers.shift_balance import ShiftBalance2d, ShiftBranch
from ..layers.squeeze_excite import SqueezeExcite2d
from ..modes import inference_mode_of

THRESHOLD = 1e-3


@dataclass
class GateRecord:
    """What was seen of one gated layer.

    Attributes:
        name: Dotted path of the convolution or block.
        kind: ``'shift'`` or ``'scale'``.
        gate: Name of the gate function, None for no gate.
        lambdas: The values of lambda, ``(C, )`` or ``(1, )``; None for scaled attention.
        channels: Channels seen, those of each image counted.
        gate_below: How many of them have a gate whose slope \\|g'(z)\\| is below the threshold.
        attention_below: How many have a factor of the attention term below it.
        trunk_below: How many have a factor of the trunk's term below it.
        both_below: How many have both.
    """

    name: str
    kind: str
    gate: str | None
    lambdas: Tensor | None
    channels: int = 0
    gate_below: int = 0
    attention_below: int = 0
    trunk_below: int = 0
    both_below: int = 0

    def share(self, what: str) -> float:
        """Return the share of channels with ``what`` (``'gate'``, ``'both'``...) below."""
        return getattr(self, f'{what}_below') / max(self.channels, 1)


def gated_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the attended convolutions and blocks with a gate by their dotted paths."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (BranchedConv, ShiftBalance2d, SqueezeExcite2d))
    }


def gate_slope(z: Tensor, gate: str | None) -> Tensor:
    """Return g'(z) for each element of ``z``, ``(N, C)``.

    A channel of a softmax depends on the others too; its derivative by its own z is taken.
    """
    value = apply_gate(z, gate)
    if gate == 'tanh':
        return 1 - value.square()
    if gate in ('sigmoid', 'softmax'):
        return value * (1 - value)
    if gate == 'relu':
        return (z > 0).to(z.dtype)
    return torch.ones_like(z)


@dataclass
class GateRecorder:
    """Measures the gates of a model in the forward passes that it runs anyway.

    Only the branches are computed once more.

    Args:
        model (nn.Module): A model or a part of one.
        threshold (float): Below this a factor counts as vanished. Defaults to 1e-3.

    Attributes:
        records (dict[str, GateRecord]): What was seen, by the name of the layer.
    """

    model: nn.Module
    threshold: float = THRESHOLD
    records: dict[str, GateRecord] = field(init=False)

    def __post_init__(self) -> None:
        self.records = {}
        # Slope and value of a gate until its trunk is known.
        self._waiting: dict[str, tuple[Tensor, Tensor]] = {}
        for name, layer in gated_layers(self.model).items():
            branch = _branch(layer)
            shift = isinstance(branch, ShiftBranch)
            self.records[name] = GateRecord(
                name,
                'shift' if shift else 'scale',
                branch.gate,
                branch.lambda_.detach().float().cpu().clone() if shift else None,
            )

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Measure every forward pass inside."""
        with ExitStack() as undo:
            for name, layer in gated_layers(self.model).items():
                record = self.records[name]
                handle = layer.register_forward_pre_hook(self._hook(record))
                undo.callback(handle.remove)
                if record.kind == 'scale' and isinstance(layer, BranchedConv):
                    # Where trunk and branch meet, before or after the norm, T is at hand.
                    layer.combine = self._combination(record, layer.combine)
                    undo.callback(delattr, layer, 'combine')
            yield

    def shares(self) -> dict[str, float]:
        """Return the shares over all layers, each layer weighing as many channels as it has."""
        total = GateRecord('', '', None, None)
        for record in self.records.values():
            for what in ('channels', 'gate_below', 'attention_below', 'trunk_below', 'both_below'):
                setattr(total, what, getattr(total, what) + getattr(record, what))
        return {what: total.share(what) for what in ('gate', 'attention', 'trunk', 'both')}

    def lambdas(self) -> Tensor | None:
        """Return all values of lambda in one vector, None if there are none."""
        values = [record.lambdas for record in self.records.values() if record.lambdas is not None]
        return torch.cat(values) if values else None

    def _hook(self, record: GateRecord) -> Any:
        def measure(layer: nn.Module, args: Sequence[Tensor]) -> None:
            branch = _branch(layer)
            with inference_mode_of(branch), torch.autocast(args[0].device.type, enabled=False):
                x = args[0].detach().to(next(branch.parameters()).dtype)
                z = branch.gate_input(x)
                slope = gate_slope(z, branch.gate).abs()
                if record.kind == 'shift':
                    self._add(record, slope, slope * branch.lambda_.abs(), torch.ones_like(slope))
                else:
                    self._waiting[record.name] = slope, apply_gate(z, branch.gate).abs()
                    if not isinstance(layer, BranchedConv):
                        self._add_scaled(record, x)

        return measure

    def _combination(self, record: GateRecord, combine: Any) -> Any:
        def measure(trunk: Tensor, attention: Tensor) -> Tensor:
            self._add_scaled(record, trunk)
            return combine(trunk, attention)

        return measure

    def _add_scaled(self, record: GateRecord, trunk: Tensor) -> None:
        slope, value = self._waiting.pop(record.name)
        self._add(record, slope, slope * trunk.detach().abs().float().mean((2, 3)), value)

    def _add(self, record: GateRecord, slope: Tensor, attention: Tensor, trunk: Tensor) -> None:
        attention_below, trunk_below = attention < self.threshold, trunk < self.threshold
        record.channels += slope.numel()
        record.gate_below += int((slope < self.threshold).sum())
        record.attention_below += int(attention_below.sum())
        record.trunk_below += int(trunk_below.sum())
        record.both_below += int((attention_below & trunk_below).sum())


def _branch(layer: nn.Module) -> AttentionBranch:
    return layer.attention if isinstance(layer, BranchedConv) else layer
