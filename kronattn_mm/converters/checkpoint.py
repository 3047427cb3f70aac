"""Read checkpoints without running what is in them, and write them so that no half file is left.

A checkpoint is a pickle, and a pickle can run code when it is read. torch reads weights and a few
harmless types only (``weights_only``); the logs that mmengine keeps in its checkpoints are numpy
arrays in a class of its own, and those are allowed here too. Anything else is refused unless the
user trusts the file.
"""

import contextlib
import difflib
import os
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..checkpoint_types import allowed_types, knows_allowed_types

# Entries of a checkpoint in which libraries keep the weights, in the order of preference.
_STATE_ENTRIES = ('state_dict', 'model_state_dict', 'model')
_PLAIN = (str, bytes, int, float, complex, type(None))


class ConversionError(ValueError):
    """What the user can put right, in one sentence."""


@dataclass
class Checkpoint:
    """Weights and what came with them.

    Attributes:
        path: The file.
        state: The weights by key.
        versions: Versions of modules, by module path, as ``state_dict()`` keeps them beside the
            weights. Old checkpoints are brought up to date by them when they are loaded.
        meta: Entry ``meta``: epoch, classes, config and the like.
        entry: Name of the entry that held the weights; empty if the file is nothing but weights.
        others: Names of the other entries: optimizer, logs and the like.
        ignored: Keys among the weights that hold no tensor.
    """

    path: Path
    state: dict[str, Tensor]
    versions: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    entry: str = ''
    others: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def read_checkpoint(
    path: str | Path, trust_pickle: bool = False, entry: str | None = None
) -> Checkpoint:
    """Read the weights of a file.

    Args:
        path (str or Path): A file of ``torch.save``: a state dict, or a checkpoint that holds one.
        trust_pickle (bool): Read objects of any kind, which can run code. Defaults to False.
        entry (str, optional): Name of the entry that holds the weights, such as
            ``'ema_state_dict'``. Defaults to the usual ones.

    Raises:
        ConversionError: If there is no such file, it cannot be read, is not safe to read, or
            holds no weights.
    """
    path = Path(path)
    content = _load(path, trust_pickle)
    if isinstance(content, nn.Module):
        content = content.state_dict()
    if not isinstance(content, Mapping):
        raise ConversionError(f'{path} holds a {type(content).__name__}, not a checkpoint')
    name, state = _weights_of(path, content, entry)
    if isinstance(state, nn.Module):
        state = state.state_dict()
    if not isinstance(state, Mapping):
        raise ConversionError(
            f'the entry {name!r} of {path} is a {type(state).__name__}, not a dict of weights'
        )
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    if not tensors:
        raise ConversionError(
            f'{path} holds no weights; its entries are {", ".join(map(str, content)) or "none"}'
        )
    meta = content.get('meta') if name else None
    return Checkpoint(
        path=path,
        state=tensors,
        versions=dict(getattr(state, '_metadata', None) or {}),
        meta=dict(meta) if isinstance(meta, Mapping) else {},
        entry=name,
        others=tuple(str(key) for key in content if key not in (name, 'meta')) if name else (),
        ignored=tuple(str(key) for key in state if key not in tensors),
    )


def write_checkpoint(
    path: str | Path,
    state: Mapping[str, Tensor],
    versions: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> None:
    """Write ``dict(state_dict=..., meta=...)`` under a temporary name, and rename it.

    What is written can be read with ``weights_only``, without any allow-list.

    Args:
        path (str or Path): The file; its folder is made if need be.
        state (Mapping[str, Tensor]): The weights.
        versions (Mapping, optional): See :class:`Checkpoint`.
        meta (Mapping, optional): Plain values; see :func:`plain`.

    Raises:
        ConversionError: If the file cannot be written.
    """
    path = Path(path)
    weights = OrderedDict(state)
    if versions:
        weights._metadata = OrderedDict(versions)
    part = path.with_name(f'.{path.name}.{os.getpid()}.part')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # An open file and not its name, which torch would write into the file: the same weights
        # then make the same bytes, whatever the file is called.
        with open(part, 'wb') as file:
            torch.save(dict(state_dict=weights, meta=dict(meta or {})), file)
        part.replace(path)
    except (OSError, RuntimeError) as error:
        raise ConversionError(f'{path} cannot be written: {_first_line(error)}') from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def plain(value: Any) -> Any:
    """Return ``value`` made of Python's own types and tensors, which are always safe to read.

    Raises:
        TypeError: If there is something else in it; the message says what.
    """
    if isinstance(value, (Tensor, *_PLAIN)) and type(value).__module__ != 'numpy':
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.tolist()
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        kind = type(value) if type(value) in (list, tuple, set) else list
        return kind(plain(item) for item in value)
    raise TypeError(f'a {type(value).__module__}.{type(value).__qualname__}')


def plain_meta(meta: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the part of ``meta`` that is safe to read, and why each other entry is left out."""
    kept, dropped = {}, {}
    for key, value in meta.items():
        try:
            kept[str(key)] = plain(value)
        except TypeError as error:
            dropped[str(key)] = f'holds {error}, which is not safe to read'
    return kept, dropped


def _load(path: Path, trust_pickle: bool) -> Any:
    if path.is_dir():
        raise ConversionError(f'{path} is a folder, not a checkpoint')
    if not path.is_file():
        near = [child.name for child in path.parent.glob('*.pth')] if path.parent.is_dir() else []
        match = difflib.get_close_matches(path.name, near, n=1)
        hint = f'; did you mean {path.with_name(match[0])}?' if match else ''
        raise ConversionError(f'there is no file {path}{hint}')
    if path.stat().st_size == 0:
        raise ConversionError(f'{path} is empty')
    try:
        if trust_pickle:
            return torch.load(path, map_location='cpu', weights_only=False)
        with _mmengine_logs_allowed():
            return torch.load(path, map_location='cpu', weights_only=True)
    except pickle.UnpicklingError as error:
        unsafe = re.search(r'GLOBAL ([\w.]+\w)', str(error))
        if unsafe is not None and not trust_pickle and _is_checkpoint(path):
            raise ConversionError(
                f'{path} is a pickle with {unsafe[1]} in it, which could run any code when it is '
                'read; with --trust-pickle it is read all the same, which is for files of your '
                'own and of people you trust'
            ) from error
        raise ConversionError(_unreadable(path, error)) from error
    except Exception as error:  # torch and pickle raise a dozen kinds for a damaged file
        raise ConversionError(_unreadable(path, error)) from error


def _weights_of(path: Path, content: Mapping, entry: str | None) -> tuple[str, Any]:
    if entry is not None:
        if entry not in content:
            raise ConversionError(
                f'{path} has no entry {entry!r}; its entries are '
                f'{", ".join(map(str, list(content)[:20]))}'
            )
        return entry, content[entry]
    for name in _STATE_ENTRIES:
        if isinstance(content.get(name), (Mapping, nn.Module)):
            return name, content[name]
    return '', content


def _is_checkpoint(path: Path) -> bool:
    """Whether the file begins as a checkpoint does, and not as a page or a picture."""
    with open(path, 'rb') as file:
        return file.read(2) in (b'PK', b'\x80\x02', b'\x80\x03', b'\x80\x04', b'\x80\x05')


def _unreadable(path: Path, error: Exception) -> str:
    if not _is_checkpoint(path):
        return f'{path} cannot be read as a checkpoint: it is none by its first bytes'
    return (
        f'{path} cannot be read as a checkpoint, it is damaged or something else: '
        f'{_first_line(error)}'
    )


def _first_line(error: Exception) -> str:
    # Before what is wrong, torch explains at length how to read the file without any check.
    text = str(error).partition('WeightsUnpickler error:')[2] or str(error)
    text = text.strip().splitlines()
    return (text[0][:160] if text else '') or type(error).__name__


@contextlib.contextmanager
def _mmengine_logs_allowed() -> Iterator[None]:
    """Let ``weights_only`` read the logs in checkpoints of mmengine."""
    if not knows_allowed_types():
        yield  # it knows no stand-ins; such files need --trust-pickle
        return
    # torch takes off its list, afterwards, what this names, so what was on it before is not named.
    known = torch.serialization.get_safe_globals()
    with torch.serialization.safe_globals([kind for kind in allowed_types() if kind not in known]):
        yield
