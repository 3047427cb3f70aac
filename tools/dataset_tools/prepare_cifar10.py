"""CIFAR-10 in the layouts of the configs: download, check, unpack.

Written is ROOT/cifar-10-batches-py/ (data/cifar10/), which mmpretrain's CIFAR10 reads. With
--pictures also ROOT/train/<class>/<number>.png and ROOT/test/... of it, for configs of folders
(configs/kronecker_attention/small). The sums are those in torchvision's source, of the archive and
of every file. An interrupted download goes on where it stopped.

Example:
    python tools/dataset_tools/prepare_cifar10.py --dry-run
"""

import argparse
import hashlib
import io
import pickle
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fetching import Archive, FetchError, Part, add_arguments, names_in, run, write_file

FOLDER = 'cifar-10-batches-py'


def part() -> tuple[Part, dict[str, str]]:
    """The archive, and the MD5 of each file in it, as torchvision has them in its source.

    Raises:
        FetchError: torchvision is not installed.
    """
    try:
        from torchvision.datasets import CIFAR10
    except ImportError as error:
        raise FetchError(
            f'the sums of the files are in torchvision, which is missing ({error}); install it '
            'with `pip install torchvision`'
        ) from error
    archive = Archive(
        CIFAR10.url,
        ('md5', CIFAR10.tgz_md5),
        'torchvision.datasets.CIFAR10',
        size=171_000_000,  # 163 MB, its page says
        unpacked=186_000_000,
    )
    files = {name: md5 for name, md5 in CIFAR10.train_list + CIFAR10.test_list}
    files[CIFAR10.meta['filename']] = CIFAR10.meta['md5']
    return Part('cifar10', archive), files


def check(root: Path, names: Sequence[str], files: dict[str, str], pictures: bool) -> list[str]:
    """Compare the sum of every file; count the pictures if there are to be any."""
    wrong = []
    for name, md5 in files.items():
        path = root / FOLDER / name
        if not path.is_file():
            wrong.append(f'{path} is missing')
        elif hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() != md5:
            wrong.append(f'{path} is damaged: remove {root / FOLDER} and {_stamp(root)}, run again')
    print(f'{root / FOLDER}: {len(files) - len(wrong)} of {len(files)} files are right')
    if wrong or not pictures:
        return wrong
    classes = load(root, 'batches.meta')['label_names']
    for split in ('train', 'test'):
        number = sum(len(load(root, name)['labels']) for name in batches(files, split))
        there = sum(len(names_in(root / split / label)) for label in classes)
        print(f'{root / split}: {there:,} of {number:,} pictures')
        if there != number:
            wrong.append(f'{root / split} has {there:,} of {number:,} pictures')
    return wrong


def _stamp(root: Path) -> Path:
    return root / '.cifar10.unpacked'


def batches(files: dict[str, str], split: str) -> list[str]:
    """The files of a split, in order."""
    start = dict(train='data_', test='test_')[split]
    return sorted(name for name in files if name.startswith(start))


def load(root: Path, name: str) -> dict:
    """Read a file of the set: a pickle, and read only after its sum was found right."""
    return pickle.loads((root / FOLDER / name).read_bytes(), encoding='latin1')


def write_pictures(root: Path, names: Sequence[str], files: dict[str, str]) -> None:
    """Write every picture as a PNG into a folder of its class, unless it is there.

    Raises:
        FetchError: A file's sum is not right.
    """
    from PIL import Image
    from tqdm import tqdm

    wrong = check(root, names, files, pictures=False)
    if wrong:
        raise FetchError(wrong[0])
    classes = load(root, 'batches.meta')['label_names']
    for split in ('train', 'test'):
        number = 0
        for name in batches(files, split):
            batch = load(root, name)
            values = batch['data'].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            pairs = list(zip(values, batch['labels'], strict=True))
            for picture, label in tqdm(pairs, desc=f'{split} {name}', unit='picture', disable=None):
                target = root / split / classes[label] / f'{number:05}.png'
                number += 1
                if not target.is_file():
                    content = io.BytesIO()
                    Image.fromarray(picture).save(content, 'PNG')
                    write_file(target, partial(io.BytesIO, content.getvalue()))


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    description, _, example = __doc__.partition('Example:')
    parser = argparse.ArgumentParser(
        description=description,
        epilog=f'example:{example}',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser, 'data/cifar10', ['cifar10'])
    parser.add_argument(
        '--pictures', action='store_true', help='write every picture as a file as well'
    )
    arguments = parser.parse_args(argv)
    try:
        found, files = part()
    except FetchError as error:
        print(f'{parser.prog}: error: {error}', file=sys.stderr)
        return 1
    finish = partial(write_pictures, files=files) if arguments.pictures else None
    return run(
        parser, arguments, [found], partial(check, files=files, pictures=arguments.pictures), finish
    )


if __name__ == '__main__':
    sys.exit(main())
