"""ImageNet (ILSVRC 2012) in the layout of the configs, out of archives that you have.

ImageNet is given to people who log in at https://image-net.org and accept its terms; nothing is
downloaded here. Put ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and
ILSVRC2012_devkit_t12.tar.gz into one folder and name it with --archives. Written are
ROOT/train/<wnid>/ and ROOT/val/<wnid>/ (data/imagenet/), 1000 folders each; the devkit says which
class a validation picture is of. The sums are those in torchvision's source. An interrupted
unpacking goes on where it stopped.

Example:
    python tools/dataset_tools/prepare_imagenet.py --archives downloads/imagenet --dry-run
"""

import argparse
import io
import sys
import tarfile
import tempfile
from functools import partial
from pathlib import Path

from fetching import Archive, FetchError, bar, free_space, gigabytes, names_in, verify, write_file

CLASSES = 1000
PICTURES = dict(train=1_281_167, val=50_000)
# Bytes, for the disk space: as TensorFlow Datasets lists them (url_checksums/imagenet2012.txt);
# the devkit's is rounded.
_SIZES = dict(train=147897477120, val=6744924160, devkit=2_600_000)


def archives_of() -> dict[str, Archive]:
    """The three archives, with the sums that torchvision has in its source.

    Raises:
        FetchError: torchvision is not installed.
    """
    try:
        from torchvision.datasets.imagenet import ARCHIVE_META
    except ImportError as error:
        raise FetchError(
            f'the sums of the archives are in torchvision, which is missing ({error}); install it '
            'with `pip install torchvision`'
        ) from error
    return {
        part: Archive(name, ('md5', md5), 'torchvision.datasets.imagenet', _SIZES[part], 0)
        for part, (name, md5) in ARCHIVE_META.items()
    }


def prepare(root: Path, folder: Path, parts: list[str]) -> None:
    """Check the archives and unpack them.

    Raises:
        FetchError: An archive is missing or damaged, or the disk is too small.
    """
    known = archives_of()
    todo = [part for part in parts if not _stamp(root, part).is_file()]
    needed = [*todo, 'devkit'] if 'val' in todo else todo
    for part in needed:
        path = folder / known[part].name
        if not path.is_file():
            raise FetchError(
                f'{path} is missing; download {path.name} from '
                'https://image-net.org/challenges/LSVRC/2012/2012-downloads.php (after logging '
                f'in), put it there, or name another folder with --archives'
            )
    need, free = sum(known[part].size for part in todo), free_space(root)
    if need > free:
        raise FetchError(
            f'{gigabytes(need)} are needed and {gigabytes(free)} are free where {root} is; nothing '
            'was unpacked'
        )
    for part in needed:
        verify(known[part], folder / known[part].name)
    for part in todo:
        path = folder / known[part].name
        try:
            if part == 'train':
                unpack_train(path, root / 'train')
            else:
                unpack_val(path, root / 'val', labels_of(folder))
        except (tarfile.TarError, EOFError) as error:
            raise FetchError(f'{path} is damaged ({error})') from error
        _stamp(root, part).write_text(known[part].sum[1] + '\n', encoding='utf-8')


def _stamp(root: Path, part: str) -> Path:
    return root / f'.{part}.unpacked'


def unpack_train(path: Path, out: Path) -> None:
    """Unpack the archive of one archive a class; pictures that are there are kept."""
    with tarfile.open(path) as outer, bar(path.stat().st_size, 'train') as shown:
        for member in outer:
            wnid = Path(member.name).stem  # without folders: nothing is written outside
            with tarfile.open(fileobj=outer.extractfile(member)) as inner:
                for picture in inner:
                    _write(inner, picture, out / wnid)
            shown.update(member.size)


def unpack_val(path: Path, out: Path, labels: list[str]) -> None:
    """Unpack the validation pictures into folders of their classes.

    Args:
        path: The archive.
        out: Folder of the classes.
        labels: The class of each picture, in the order of their names.

    Raises:
        FetchError: There are more or fewer pictures than labels.
    """
    with tarfile.open(path) as file, bar(path.stat().st_size, 'val') as shown:
        members = sorted((member for member in file if member.isfile()), key=lambda m: m.name)
        if len(members) != len(labels):
            raise FetchError(
                f'{path} has {len(members):,} pictures, the devkit {len(labels):,} labels'
            )
        for member, wnid in zip(members, labels, strict=True):
            _write(file, member, out / wnid)
            shown.update(member.size)


def _write(file: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    target = folder / Path(member.name).name
    if member.isfile() and not (target.is_file() and target.stat().st_size == member.size):
        content = file.extractfile(member).read()
        write_file(target, partial(io.BytesIO, content))


def labels_of(folder: Path) -> list[str]:
    """The WordNet id of every validation picture, read from the devkit by torchvision.

    Raises:
        FetchError: The devkit cannot be read.
    """
    from torchvision.datasets.imagenet import load_meta_file, parse_devkit_archive

    name = archives_of()['devkit'].name
    with tempfile.TemporaryDirectory() as scratch:
        # torchvision writes its file beside the archive, which may lie where nobody may write
        (Path(scratch) / name).symlink_to((folder / name).absolute())
        try:
            parse_devkit_archive(scratch)
            return list(load_meta_file(scratch)[1])
        except (ImportError, RuntimeError, OSError, ValueError) as error:
            raise FetchError(f'{folder / name} cannot be read: {error}') from error


def check(root: Path, parts: list[str]) -> list[str]:
    """Count classes and pictures."""
    wrong = []
    for part in parts:
        folder = root / part
        classes = [entry for entry in sorted(names_in(folder)) if (folder / entry).is_dir()]
        number = sum(len(names_in(folder / name)) for name in classes)
        print(
            f'{folder}: {number:,} of {PICTURES[part]:,} pictures, {len(classes):,} of '
            f'{CLASSES:,} classes'
        )
        if (number, len(classes)) != (PICTURES[part], CLASSES):
            wrong.append(
                f'{folder} has {number:,} pictures in {len(classes):,} folders; expected are '
                f'{PICTURES[part]:,} in {CLASSES:,}'
            )
    return wrong


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    description, _, example = __doc__.partition('Example:')
    parser = argparse.ArgumentParser(
        description=description,
        epilog=f'example:{example}',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        'root', nargs='?', type=Path, default=Path('data/imagenet'), help='folder (%(default)s)'
    )
    parser.add_argument(
        '--parts', nargs='+', choices=['train', 'val'], default=['train', 'val'], metavar='PART'
    )
    parser.add_argument(
        '--archives', type=Path, metavar='FOLDER', help='where the archives are (default: ROOT)'
    )
    parser.add_argument(
        '--check', action='store_true', help='only say what is there and what is missing'
    )
    parser.add_argument('--dry-run', action='store_true', help='only say what would be unpacked')
    arguments = parser.parse_args(argv)
    root, folder = arguments.root, arguments.archives or arguments.root
    parts = list(dict.fromkeys(arguments.parts))
    try:
        if arguments.dry_run:
            for part, archive in archives_of().items():
                there = 'is there' if (folder / archive.name).is_file() else 'is missing'
                print(f'{part}: {folder / archive.name} {there}, {gigabytes(archive.size)}')
                print(f'    md5 {archive.sum[1]} (from {archive.source})')
            print(f'{gigabytes(free_space(root))} free where {root} is')
            return 0
        if not arguments.check:
            prepare(root, folder, parts)
        wrong = check(root, parts)
    except FetchError as error:
        print(f'{parser.prog}: error: {error}', file=sys.stderr)
        return 1
    for sentence in wrong:
        print(f'{parser.prog}: error: {sentence}', file=sys.stderr)
    return int(bool(wrong))


if __name__ == '__main__':
    sys.exit(main())
