"""Read pictures and label maps to their last byte."""

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from .findings import Finding
from .listing import LabelMap, Picture

_ORIENTATION = 0x0112  # EXIF; 5 to 8 exchange width and height


@dataclass(frozen=True)
class Read:
    """What reading a picture showed.

    Attributes:
        picture: The picture.
        digest: Of the file's bytes, None where they could not be read.
        findings: What is wrong.
    """

    picture: Picture
    digest: bytes | None
    findings: tuple[Finding, ...]


def read_pictures(pictures: Sequence[Picture], workers: int) -> Iterator[Read]:
    """Read pictures in several threads (decoding lets go of Python's lock), in their order."""
    if workers == 1:
        yield from map(read_picture, pictures)
        return
    with ThreadPool(workers) as pool:
        yield from pool.imap(read_picture, pictures, chunksize=8)


def read_picture(picture: Picture) -> Read:
    """Decode a picture and its label map, and compare their sizes."""
    findings: list[Finding] = []
    digest, size = None, None
    content = _content(picture.path, 'missing picture', 'unreadable picture', findings)
    if content is not None:
        digest = hashlib.blake2b(content, digest_size=16).digest()
        size = _decode(content, picture, findings)
    if picture.labels is not None:
        _check_label_map(picture.labels, size, findings)
    return Read(picture, digest, tuple(findings))


def _content(path: Path, missing: str, unreadable: str, findings: list[Finding]) -> bytes | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        findings.append(Finding(missing, str(path), 'it is listed but is not there'))
        return None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        findings.append(Finding(unreadable, str(path), str(error)))
        return None
    if not content:
        findings.append(Finding(unreadable, str(path), 'the file is empty'))
        return None
    return content


def _decode(content: bytes, picture: Picture, findings: list[Finding]) -> tuple[int, int] | None:
    """Width and height as the libraries see them, turned by the EXIF tag."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            stored = image.size
            turned = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
            image.draft('RGB', (1, 1))  # JPEG: reads everything, computes an eighth
            image.load()
    except Exception as error:  # whatever a decoder stumbles over
        message = f'it cannot be decoded to its end ({len(content)} bytes): {_reason(error)}'
        findings.append(Finding('unreadable picture', str(picture.path), message))
        return None
    size = stored[::-1] if turned else stored
    if picture.size is not None and size != picture.size:
        message = (
            f'it is {size[0]} x {size[1]} pixels, its annotation says '
            f'{picture.size[0]} x {picture.size[1]}'
        )
        if turned:
            message += ' (turned by its EXIF tag, as the libraries read it)'
        findings.append(Finding('picture size', str(picture.path), message))
    return size


def _check_label_map(
    labels: LabelMap, size: tuple[int, int] | None, findings: list[Finding]
) -> None:
    content = _content(labels.path, 'missing label map', 'label map', findings)
    if content is None:
        return
    try:
        with Image.open(io.BytesIO(content)) as image:
            values = np.asarray(image)
    except Exception as error:  # whatever a decoder stumbles over
        message = f'it cannot be decoded to its end ({len(content)} bytes): {_reason(error)}'
        findings.append(Finding('label map', str(labels.path), message))
        return
    if values.ndim != 2:
        message = (
            f'it has {values.shape[2]} channels: colours; expected one number a pixel '
            '(a grey or palette PNG)'
        )
        findings.append(Finding('label map', str(labels.path), message))
        return
    if size is not None and values.shape[::-1] != size:
        message = (
            f'it is {values.shape[1]} x {values.shape[0]} pixels, its picture {size[0]} x {size[1]}'
        )
        findings.append(Finding('label map', str(labels.path), message))
    found, counts = np.unique(values, return_counts=True)
    wrong = {
        int(value): int(count)
        for value, count in zip(found, counts, strict=True)
        if int(value) not in labels.allowed
    }
    if wrong:
        some = ', '.join(str(value) for value in sorted(wrong)[:5])
        message = (
            f'{sum(wrong.values())} of {values.size} pixels hold {some}'
            f'{", ..." if len(wrong) > 5 else ""}; allowed are {ranges(labels.allowed)}'
        )
        findings.append(Finding('label out of range', str(labels.path), message))


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):  # its own words are an address in memory
        return 'it begins like no form of picture that is known here, or its head is cut off'
    return str(error)


def ranges(values: Iterable[int]) -> str:
    """Write numbers in a short form: ``0 to 20, 255``."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and runs[-1][1] == value - 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ', '.join(str(first) if first == last else f'{first} to {last}' for first, last in runs)
