"""Download archives so that nothing is lost, check them, and unpack them: for prepare_*.py.

A download goes to ``<name>.part`` and is renamed when it is whole and its sum is right; what an
interrupted one has is kept, and the same command goes on there. Unpacking writes one file at a time
under a temporary name and passes over those that are there.

torch.hub and torchvision download whole files only, and start anew after an interruption, which for
COCO's 19 GB is often; hence this module.
"""

import argparse
import errno
import hashlib
import http.client
import os
import shutil
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

_CHUNK = 1 << 20  # bytes
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, OSError, ValueError)


class FetchError(Exception):
    """Something that the user can put right, in a sentence."""


@dataclass(frozen=True)
class Archive:
    """An archive as it is published.

    Attributes:
        url: Where it is.
        sum: Algorithm of hashlib and hexadecimal digest, such as ``('md5', '6cd6...')``.
        source: Who says so.
        size: Bytes of the archive, for the disk space; that of a download counts, not this.
        unpacked: Bytes of what is unpacked of it, about.
    """

    url: str
    sum: tuple[str, str]
    source: str
    size: int
    unpacked: int

    @property
    def name(self) -> str:
        """File name."""
        return self.url.rpartition('/')[2]


@dataclass(frozen=True)
class Part:
    """A part of a data set that comes as one archive.

    Attributes:
        name: What ``--parts`` calls it.
        archive: The archive.
        strip: Leading folders of its members that are left out.
        only: Beginnings of the members (after ``strip``) that are unpacked, all if empty.
        into: Folder below that of the data set.
    """

    name: str
    archive: Archive
    strip: str = ''
    only: tuple[str, ...] = ()
    into: str = ''


def add_arguments(parser: argparse.ArgumentParser, root: str, parts: Sequence[str]) -> None:
    """Add what all prepare_*.py take."""
    parser.add_argument(
        'root', nargs='?', type=Path, default=Path(root), help='folder to make (%(default)s)'
    )
    parser.add_argument(
        '--parts',
        nargs='+',
        choices=parts,
        default=list(parts),
        metavar='PART',
        help=f'which of {", ".join(parts)} (default: all)',
    )
    parser.add_argument(
        '--archives',
        type=Path,
        metavar='FOLDER',
        help='where archives are, or are downloaded to (default: archives/ in the folder to make)',
    )
    parser.add_argument(
        '--mirror',
        metavar='URL',
        help='download from URL/<file name> instead; the sums stay the published ones',
    )
    parser.add_argument(
        '--check', action='store_true', help='only say what is there and what is missing'
    )
    parser.add_argument(
        '--dry-run', action='store_true', help='only say what would be downloaded and unpacked'
    )


def run(
    parser: argparse.ArgumentParser,
    arguments: argparse.Namespace,
    parts: Sequence[Part],
    check: Callable[[Path, Sequence[str]], list[str]],
    finish: Callable[[Path, Sequence[str]], None] | None = None,
) -> int:
    """Prepare a data set as the command line says; returns the exit code.

    Args:
        parser: For the name in messages.
        arguments: Of :func:`add_arguments`.
        parts: All parts of the data set.
        check: Given the folder and the names of parts, prints what is there and returns a
            sentence for everything that is not as it must be.
        finish: What is to be done after unpacking, given the same.
    """
    root, names = arguments.root, list(dict.fromkeys(arguments.parts))
    archives = arguments.archives or root / 'archives'
    chosen = [part for part in parts if part.name in names]
    try:
        if arguments.dry_run:
            show_plan(chosen, root, archives, arguments.mirror)
            return 0
        if not arguments.check:
            obtain(chosen, root, archives, arguments.mirror)
            if finish is not None:
                finish(root, names)
        wrong = check(root, names)
    except (FetchError, OSError) as error:  # OSError: a folder that cannot be written to
        print(f'{parser.prog}: error: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f'{parser.prog}: stopped; the same command goes on here', file=sys.stderr)
        return 130
    for sentence in wrong:
        print(f'{parser.prog}: error: {sentence}', file=sys.stderr)
    if not wrong:
        print(f'{root}: {", ".join(names)} complete')
    return int(bool(wrong))


def show_plan(parts: Sequence[Part], root: Path, archives: Path, mirror: str | None) -> None:
    """Print what would be done."""
    for part in parts:
        archive = part.archive
        if _stamp(part, root).is_file():
            print(f'{part.name}: unpacked already ({_stamp(part, root)})')
            continue
        there = archives / archive.name
        print(f'{part.name}: {url_of(archive, mirror)}')
        state = 'is there' if there.is_file() else gigabytes(archive.size)
        print(f'    to {there}, {state}')
        print(f'    {archive.sum[0]} {archive.sum[1]} (from {archive.source})')
        print(f'    unpacked to {root / part.into}, about {gigabytes(archive.unpacked)}')
    need, free = space_needed(parts, root, archives), free_space(root)
    print(f'{gigabytes(need)} needed, {gigabytes(free)} free')


def obtain(parts: Sequence[Part], root: Path, archives: Path, mirror: str | None) -> None:
    """Download, check and unpack what is not unpacked yet.

    Raises:
        FetchError: A download fails, an archive is damaged, or the disk is too small.
    """
    need, free = space_needed(parts, root, archives), free_space(root)
    if need > free:
        raise FetchError(
            f'{gigabytes(need)} are needed and {gigabytes(free)} are free where {root} is; nothing '
            'was downloaded'
        )
    for part in parts:
        stamp = _stamp(part, root)
        if stamp.is_file():
            continue
        path = fetch(part.archive, archives, mirror)
        print(f'unpacking {path} ...', file=sys.stderr)
        unpack(path, root / part.into, part.strip, part.only)
        stamp.write_text(f'{part.archive.sum[1]}\n', encoding='utf-8')


def _stamp(part: Part, root: Path) -> Path:
    """A file that says that a part was unpacked to its end."""
    return root / f'.{part.name}.unpacked'


def url_of(archive: Archive, mirror: str | None) -> str:
    """Where an archive is downloaded from."""
    return archive.url if mirror is None else f'{mirror.rstrip("/")}/{archive.name}'


def fetch(archive: Archive, folder: Path, mirror: str | None = None) -> Path:
    """Return the archive in ``folder``, downloaded unless it is there, with the right sum.

    Raises:
        FetchError: It cannot be downloaded, or its sum is another one.
    """
    path = folder / archive.name
    if path.is_file():
        try:
            verify(archive, path)
        except FetchError as error:
            raise FetchError(f'{error}; remove it, and it is downloaded again') from None
        return path
    url = url_of(archive, mirror)
    if not url.startswith(('http://', 'https://', 'ftp://', 'file://')):
        raise FetchError(
            f'{url} is no address (https://..., file:///...); --archives names a folder where '
            'the archives are'
        )
    draft = download(url, path)
    try:
        verify(archive, draft)
    except FetchError as error:
        draft.unlink()  # going on with it would end the same
        raise FetchError(f'{error}; what was downloaded from {url} is removed') from None
    draft.replace(path)
    return path


def verify(archive: Archive, path: Path) -> None:
    """Compare the sum of a file.

    Raises:
        FetchError: It is another one.
    """
    algorithm, wanted = archive.sum
    digest = hashlib.new(algorithm)
    with path.open('rb') as stream, bar(path.stat().st_size, f'checking {path.name}') as shown:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            shown.update(len(chunk))
    if digest.hexdigest() != wanted:
        raise FetchError(
            f'{path} is damaged or another file: its {algorithm} is {digest.hexdigest()}, '
            f'{archive.source} says {wanted}'
        )


def download(
    url: str, path: Path, attempts: int = 5, timeout: float = 60.0, wait: float = 2.0
) -> Path:
    """Download to ``<path>.part``, going on where an earlier attempt stopped.

    Args:
        url: What to download.
        path: Name that the file is to have.
        attempts: How often in a row nothing may come before it is given up.
        timeout: Seconds without an answer that count as a failure.
        wait: Seconds between attempts.

    Returns:
        Path: The ``.part`` file, which is as long as the server says.

    Raises:
        FetchError: It is given up; says where to put the file that was fetched otherwise.
    """
    draft = path.with_name(f'{path.name}.part')
    path.parent.mkdir(parents=True, exist_ok=True)
    failures, reason = 0, ''
    while failures < attempts:
        before = _length(draft)
        try:
            if _receive(url, draft, timeout):
                return draft
            reason = 'the connection ended early'
        except urllib.error.HTTPError as error:
            reason = f'the server answers {error.code} {error.reason}'
            if error.code == 416:  # nothing after what is there: whole, or of another file
                if error.headers.get('Content-Range', '') == f'bytes */{before}':
                    return draft
                draft.unlink(missing_ok=True)
            elif error.code < 500:
                break
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise FetchError(f'the disk is full; {draft} is kept') from error
            reason = str(getattr(error, 'reason', None) or error or type(error).__name__)
        # A slow line that drops now and then gets there: only attempts that bring nothing count.
        failures = 0 if _length(draft) > before else failures + 1
        if failures < attempts:
            time.sleep(wait)
    kept = f'; {draft} has {_length(draft):,} bytes and is gone on with' if draft.is_file() else ''
    raise FetchError(
        f'{url} cannot be downloaded ({reason}){kept}. Without a connection, fetch that file '
        f'elsewhere and put it at {path}, then run this again'
    )


def _length(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _receive(url: str, draft: Path, timeout: float) -> bool:
    """Append to a draft what the server has after it; returns whether it is whole."""
    done = _length(draft)
    headers = {'User-Agent': 'kronattn_mm'}
    if done:
        headers['Range'] = f'bytes={done}-'
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        resumed = answer.status == 206 and answer.headers.get('Content-Range', '').startswith(
            f'bytes {done}-'
        )
        if not resumed:  # a server that knows no ranges sends everything
            done = 0
        length = answer.headers.get('Content-Length')
        total = None if length is None else done + int(length)
        with draft.open('ab' if resumed else 'wb') as stream, bar(total, draft.stem, done) as shown:
            while chunk := answer.read(_CHUNK):
                stream.write(chunk)
                shown.update(len(chunk))
    return total is None or _length(draft) == total


def unpack(path: Path, out: Path, strip: str = '', only: Sequence[str] = ()) -> None:
    """Unpack a zip or tar archive; files that are there in the right length are kept.

    Args:
        path: The archive.
        out: Folder to unpack to.
        strip: Leading folders of the members that are left out, such as ``'VOCdevkit'``.
        only: Beginnings of the members (after ``strip``) to unpack, all if empty.

    Raises:
        FetchError: The archive is damaged, or a member would be written outside ``out``.
    """
    try:
        for name, size, opened in _members(path):
            target = _target(path, name, out, strip, only)
            if target is None or _length(target) == size and target.is_file():
                continue
            write_file(target, opened)
    except _DAMAGED as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk, not the archive
            raise FetchError(f'{path} cannot be unpacked: {error}') from error
        raise FetchError(f'{path} is damaged ({error}): remove it and run this again') from error


def _members(path: Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes]]]]:
    """Name, length and opener of every file in an archive."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            entries = [entry for entry in file.infolist() if not entry.is_dir()]
            for entry in _counted(entries, len(entries), path):
                yield entry.filename, entry.file_size, lambda entry=entry: file.open(entry)
        return
    with tarfile.open(path) as file:
        for member in _counted(file, None, path):
            if member.isdir():
                continue
            if not member.isfile():
                raise FetchError(f'{path}: {member.name!r} is a link or a device: not unpacked')
            yield member.name, member.size, lambda member=member: file.extractfile(member)


def _counted(items: Iterable, total: int | None, path: Path) -> Iterable:
    from tqdm import tqdm

    return tqdm(items, desc=f'unpacking {path.name}', total=total, unit='file', disable=None)


def _target(path: Path, name: str, out: Path, strip: str, only: Sequence[str]) -> Path | None:
    """Where a member is written; None where it is not."""
    place = PurePosixPath(name.replace('\\', '/'))
    if place.is_absolute() or '..' in place.parts or ':' in name:
        raise FetchError(f'{path}: {name!r} would be written outside {out}: not unpacked')
    if strip:
        if not place.is_relative_to(strip):
            return None
        place = place.relative_to(strip)
    if only and not any(place.as_posix().startswith(start) for start in only):
        return None
    return out.joinpath(*place.parts)


def write_file(target: Path, opened: Callable[[], IO[bytes]]) -> None:
    """Write a file under a temporary name and rename it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f'.{target.name}.part')
    try:
        with opened() as source, draft.open('wb') as stream:
            shutil.copyfileobj(source, stream, _CHUNK)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def space_needed(parts: Sequence[Part], root: Path, archives: Path) -> int:
    """Bytes that are still to be written."""
    need = 0
    for part in parts:
        if not _stamp(part, root).is_file():
            name = part.archive.name
            there = _length(archives / name) or _length(archives / f'{name}.part')
            need += max(part.archive.size - there, 0) + part.archive.unpacked
    return need


def free_space(folder: Path) -> int:
    """Free bytes where a folder is, or will be."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def gigabytes(size: int) -> str:
    """Bytes in words."""
    return f'{size / 1e9:.1f} GB' if size >= 1e8 else f'{size / 1e6:.1f} MB'


def bar(total: int | None, what: str, done: int = 0) -> 'tqdm':  # noqa: F821
    """A progress bar of bytes, nothing where nobody watches."""
    from tqdm import tqdm

    return tqdm(
        total=total, initial=done, desc=what, unit='B', unit_scale=True, disable=None, leave=False
    )


def names_in(folder: Path) -> set[str]:
    """Names of what is in a folder; none where there is no such folder."""
    return set(os.listdir(folder)) if folder.is_dir() else set()
