"""What a study of attended convolutions compares: a variant, and arguments of its layers.

Paper: "Shift-and-Balance Attention" (arXiv 2103.13080), tables 5 to 10. A variant is the file of
that name under configs/shift_and_balance/classification/_base_; the arguments are what the paper's
ablations vary.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Numbers after the dash: how many of a bottleneck's three convolutions are attended.
VARIANTS = ('static', 'se-block', 'se-1', 'se-2', 'se-3', 'sb-1', 'sb-2', 'sb-3', 'dyconv')
# Which kinds of variants take an argument: sb (convolutions), se (convolutions).
TAKEN_BY = dict(
    lambda_init=('sb',),
    gate=('sb', 'se'),
    hidden_ratio=('sb', 'se'),
    dropout=('sb', 'se'),
    place=('sb', 'se'),
)
# The bottleneck is six times as wide inside (section 5.1).
DEPTHWISE = 1 / 6


@dataclass(frozen=True)
class Arm:
    """One network of a comparison.

    Args:
        variant (str): One of :data:`VARIANTS`.
        options (tuple): Pairs of an argument of the attended convolutions and its value, of those
            in :data:`TAKEN_BY`; what is not there has the layer's default.
    """

    variant: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """Such as ``'sb-3'`` or ``'sb-3 lambda_init=0.5 gate=none'``."""
        return ' '.join([self.variant, *(f'{key}={_text(value)}' for key, value in self.options)])

    @property
    def slug(self) -> str:
        """The name as part of a folder's name."""
        return self.name.replace(' ', '_').replace('=', '-')

    def layer_arguments(self) -> dict[str, Any]:
        """Return the options as arguments of the layer.

        ``hidden_ratio`` also scales the hidden units of depthwise convolutions, which are a sixth
        of the others' (our reading of table 10).
        """
        arguments = dict(self.options)
        if 'hidden_ratio' in arguments:
            arguments['depthwise_hidden_ratio'] = arguments['hidden_ratio'] * DEPTHWISE
        return arguments


def expand_arms(variants: Sequence[str], options: Mapping[str, Sequence[Any]]) -> list[Arm]:
    """Return every variant with every combination of the options that it takes.

    Args:
        variants (Sequence[str]): Names of variants.
        options (Mapping[str, Sequence]): Values to try for each argument; an empty sequence
            leaves the layer's default.

    Raises:
        ValueError: If a variant is unknown or an option is taken by none of the variants.
    """
    unknown = [name for name in variants if name not in VARIANTS]
    if unknown:
        raise ValueError(f'unknown variant {unknown[0]!r}; there are {", ".join(VARIANTS)}')
    given = {name: values for name, values in options.items() if values}
    arms: dict[Arm, None] = {}
    for variant in variants:
        kind = '' if variant == 'se-block' else variant.partition('-')[0]
        own = {name: values for name, values in given.items() if kind in TAKEN_BY[name]}
        for combination in itertools.product(*own.values()):
            arms[Arm(variant, tuple(zip(own, combination, strict=True)))] = None
    for name in given:
        if not any(name in dict(arm.options) for arm in arms):
            raise ValueError(f'{name} is an argument of none of {", ".join(variants)}')
    return list(arms)


def _text(value: Any) -> str:
    return 'none' if value is None else f'{value:g}' if isinstance(value, float) else str(value)
