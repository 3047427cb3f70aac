"""Compare a converted checkpoint with the model that it is for."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from ..cost.config import load_model
from ..plugging.removal import added_keys
from .checkpoint import ConversionError
from .conversion import Conversion


@dataclass(frozen=True)
class Fit:
    """How weights fit a model.

    Attributes:
        new: Keys of inserted layers, and of new parts of replaced convolutions, that the weights
            do not have; the model keeps what it starts with.
        missing: Other keys of the model that the weights do not have.
        unexpected: Keys of the weights that the model does not have.
        mismatched: Keys with different shapes, and the two shapes in words.
        allowed: Of the missing ones, those that may be.
    """

    new: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: dict[str, str] = field(default_factory=dict)
    allowed: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing stands against writing the weights."""
        return not (self.missing or self.unexpected or self.mismatched)

    def sentence(self, name: str) -> str:
        """Say what does not fit, for an error."""
        parts = []
        for keys, text in (
            (self.missing, 'it needs {} that the checkpoint does not have'),
            (self.unexpected, 'it has no {}'),
        ):
            if keys:
                more = f' and {len(keys) - 1} more' if len(keys) > 1 else ''
                parts.append(text.format(keys[0] + more))
        if self.mismatched:
            key, shapes = next(iter(self.mismatched.items()))
            more = f' and {len(self.mismatched) - 1} more' if len(self.mismatched) > 1 else ''
            parts.append(f'of another shape is {key}, {shapes}{more}')
        return (
            f'the result does not fit {name}: {"; ".join(parts)}; what is meant to be so is '
            'allowed by name with --allow, and --verbose lists all of it'
        )


def target_model(
    config: str, part: str | None = None, cfg_options: dict | None = None
) -> nn.Module:
    """Build the model of a config, or a part of it.

    Raises:
        ConversionError: If the model has no such part.
        ConfigError: See :func:`kronattn_mm.cost.config.load_model`.
    """
    model, _ = load_model(config, cfg_options)
    if not part:
        return model
    try:
        return model.get_submodule(part)
    except AttributeError as error:
        names = ', '.join(name for name, _ in model.named_children())
        raise ConversionError(
            f'the model of {config} has no part {part!r}; its parts are {names}'
        ) from error


def fit(conversion: Conversion, model: nn.Module, allow: Sequence[str] = ()) -> Fit:
    """Compare weights with a model; what does not fit but is allowed to is dropped.

    Args:
        conversion (Conversion): The weights; changed in place where ``allow`` says so.
        model (nn.Module): What they are for.
        allow (Sequence[str]): Keys that may be missing, left over or of another shape: dotted
            paths, or patterns in which ``*`` stands for anything.
    """
    from ..engine.load_report import loaded_keys  # brings mmengine's runner

    with warnings.catch_warnings():
        # A norm makes the counter that an old checkpoint lacks, and the model has no data here.
        warnings.filterwarnings('ignore', message='.*copying from a non-meta parameter')
        found = loaded_keys(model, conversion.state)
        not_allowed = loaded_keys(model, conversion.state, allow)
    own = set(added_keys(model))
    for keys, rest, reason in (
        (found.unexpected, not_allowed.unexpected, 'not in the model, which was allowed'),
        (found.mismatched, not_allowed.mismatched, 'of another shape, which was allowed'),
    ):
        for key in keys:
            if key not in rest:
                conversion.drop(key, reason)
    return Fit(
        new=tuple(key for key in model.state_dict() if key in own and key not in conversion.state),
        missing=not_allowed.missing,
        unexpected=not_allowed.unexpected,
        mismatched=dict(not_allowed.mismatched),
        allowed=tuple(key for key in found.missing if key not in not_allowed.missing),
    )
