"""A checkpoint to give away: the weights, what they are, and a name that says if it is whole.

The libraries' own ``publish_model.py`` cannot read their checkpoints with torch 2.6 or later, or
reads them without ``weights_only``; the file written here needs neither. The first 8 digits of its
SHA-256 are in the name, where ``torch.hub`` looks for them (``check_hash=True``).
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from .checkpoint import Checkpoint, ConversionError, plain_meta, write_checkpoint

# What a user of the weights needs; the rest says where and by whom they were trained.
KEPT_META = (
    'dataset_meta',
    'classes',
    'palette',
    'CLASSES',
    'PALETTE',
    'epoch',
    'iter',
    'cfg',
    'config',
    'mmengine_version',
    'mmcv_version',
    'mmdet_version',
    'mmseg_version',
    'mmpretrain_version',
    'converted_from',
    'arch',
)
HASH_DIGITS = 8


def published(
    source: Checkpoint, keep_meta: Iterable[str] = (), drop_meta: Iterable[str] = ()
) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, str]]:
    """Choose what of a checkpoint is given away.

    Args:
        source (Checkpoint): A checkpoint of a training.
        keep_meta (Iterable[str]): Entries of the metadata to keep besides :data:`KEPT_META`.
        drop_meta (Iterable[str]): Entries not to keep, such as ``cfg``, which may hold paths.

    Returns:
        tuple: The weights (contiguous, on the CPU, without what they share with others), the
        metadata, and from each entry of the metadata that is left out, the reason.

    Raises:
        ConversionError: If an entry that is named is not there or is no plain value.
    """
    keep, drop = set(keep_meta), set(drop_meta)
    for name in keep | drop:
        if name not in source.meta:
            raise ConversionError(
                f'the metadata of {source.path} has no entry {name!r}; it has '
                f'{", ".join(map(str, source.meta)) or "none"}'
            )
    meta, left_out = plain_meta(source.meta)
    for name in keep & left_out.keys():
        raise ConversionError(
            f'the entry {name!r} of the metadata cannot be kept: it {left_out[name]}'
        )
    for name in list(meta):
        if name in drop or name not in KEPT_META and name not in keep:
            del meta[name]
            left_out[name] = (
                'as --drop-meta says'
                if name in drop
                else 'not needed to use the weights; --keep-meta keeps it'
            )
    # A view would bring the whole of what it is a view of along.
    state = {key: value.detach().contiguous().clone() for key, value in source.state.items()}
    return state, meta, left_out


def write_published(
    output: Path,
    state: Mapping[str, Tensor],
    versions: Mapping[str, Any],
    meta: Mapping[str, Any],
    force: bool = False,
) -> Path:
    """Write a checkpoint whose name ends in the hash of its bytes.

    Args:
        output (Path): Name without the hash, such as ``model.pth``.
        state (Mapping[str, Tensor]): The weights.
        versions (Mapping): Versions of modules; see :func:`.checkpoint.write_checkpoint`.
        meta (Mapping): The metadata.
        force (bool): Replace a file of that name. Defaults to False.

    Returns:
        Path: The file, such as ``model-1a2b3c4d.pth``.

    Raises:
        ConversionError: If it cannot be written or is there already.
    """
    part = output.with_name(f'.{output.name}.unnamed')
    try:
        write_checkpoint(part, state, versions, meta)
        digest = file_hash(part)
        suffix = output.suffix or '.pth'
        named = output.with_name(f'{output.name.removesuffix(output.suffix)}-{digest}{suffix}')
        if named.exists() and not force:
            raise ConversionError(f'{named} exists; --force replaces it')
        part.replace(named)
    except OSError as error:
        raise ConversionError(f'{output} cannot be written: {error}') from error
    finally:
        part.unlink(missing_ok=True)
    return named


def file_hash(path: Path) -> str:
    """Return the first 8 digits of a file's SHA-256."""
    with open(path, 'rb') as file:
        return (
            hashlib.file_digest(file, 'sha256').hexdigest()[:HASH_DIGITS]
            if hasattr(hashlib, 'file_digest')
            else hashlib.sha256(file.read()).hexdigest()[:HASH_DIGITS]
        )
