"""Tell one base from another: by its keys and shapes, and by its very weights.

A layer that was trained on one network says nothing on another, and would load there without a
word if the shapes happened to agree.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from .removal import added_keys

_COUNTER = '.num_batches_tracked'


def base_state(model: nn.Module, state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return the state of a model without what ``Plugged`` put in.

    Args:
        model (nn.Module): A model or a part of one.
        state (Mapping, optional): A state dict of it, such as an average over time; defaults to
            its own.
    """
    ours = set(added_keys(model))
    state = model.state_dict() if state is None else state
    return {key: value for key, value in state.items() if key not in ours}


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """Return the shape of every tensor, as JSON writes it."""
    return {key: list(value.shape) for key, value in state.items()}


def fingerprint(shapes: Mapping[str, Iterable[int]]) -> str:
    """Return the SHA-256 of keys and shapes, in the order of the keys' names."""
    lines = (f'{key} {list(shapes[key])}\n' for key in sorted(shapes))
    return hashlib.sha256(''.join(lines).encode()).hexdigest()


def digest(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's dtype and values."""
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(str(tensor.dtype).encode() + values.tobytes()).hexdigest()


def digests(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return :func:`digest` of every tensor."""
    return {key: digest(value) for key, value in state.items()}


def weights_fingerprint(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of all tensors of a base, without the norms' counts of batches."""
    lines = (f'{key} {digest(state[key])}\n' for key in sorted(state) if not key.endswith(_COUNTER))
    return hashlib.sha256(''.join(lines).encode()).hexdigest()


@dataclass(frozen=True)
class Moved:
    """What of a base differs from the plain checkpoint.

    Attributes:
        statistics: Keys of running statistics of batch norms.
        weights: All other keys.
    """

    statistics: tuple[str, ...]
    weights: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.statistics or self.weights)


def moved_from(plain: Mapping[str, Any], model: nn.Module, state: Mapping[str, Tensor]) -> Moved:
    """Compare the base of a model with a plain checkpoint.

    Args:
        plain (Mapping): State dict of the plain model, or :func:`digests` of one.
        model (nn.Module): The plugged model.
        state (Mapping): Its base's state; see :func:`base_state`.

    Raises:
        ValueError: If ``plain`` lacks tensors of the base; it is then of another model.
    """
    # Checkpoints from before torch 0.4.1, and converted ones, have no counts of batches.
    missing = [key for key in state if key not in plain and not key.endswith(_COUNTER)]
    if missing:
        raise ValueError(
            f'the plain checkpoint lacks {len(missing)} of the {len(state)} tensors '
            f'of the base, such as {missing[0]}; it is not one of this '
            f'{type(model).__name__}'
        )
    statistics = norm_keys(model, statistics_only=True)
    changed = [
        key
        for key, value in state.items()
        if key in plain and _as_digest(plain[key], value.dtype) != digest(value)
    ]
    return Moved(
        tuple(key for key in changed if key in statistics),
        tuple(key for key in changed if key not in statistics),
    )


def norm_keys(model: nn.Module, statistics_only: bool = False) -> set[str]:
    """Return the keys of the batch norms of a model, or of their running statistics alone."""
    keys = set()
    for path, module in model.named_modules():
        if isinstance(module, _NormBase):
            names = [name for name, _ in module.named_buffers()]
            if not statistics_only:
                names += [name for name, _ in module.named_parameters()]
            keys.update(f'{path}.{name}' for name in names)
    return keys


def _as_digest(value: Any, dtype: torch.dtype) -> str:
    # A checkpoint of another precision is loaded in the model's.
    return value if isinstance(value, str) else digest(value.to(dtype))
