"""Unpack pictures with labels from one .npz file into folders that mmpretrain reads.

The file holds, for train and test each, `*_jpeg` (all JPEG files end to end, uint8), `*_offset`
(where each begins, and the end) and `*_label` (number of the class), and `classes`. Written are
OUT/train/<class>/<number>.jpg and OUT/test/<class>/<number>.jpg, the bytes unchanged, for
mmpretrain's CustomDataset.

Example:
    python tools/dataset_tools/unpack_image_archive.py cifar10_subset.npz data/cifar10
"""

import argparse
import shutil
import sys
from pathlib import Path

import numpy as np

SPLITS = ('train', 'test')
KEYS = ('classes', *(f'{split}_{part}' for split in SPLITS for part in ('jpeg', 'offset', 'label')))


class ArchiveError(Exception):
    """The archive cannot be used; the message is for the user."""


def unpack(archive: Path, out: Path) -> dict[str, int]:
    """Write the pictures of ``archive`` under ``out``; returns how many each split has.

    Everything is written to a folder beside ``out`` that is renamed at the end.

    Raises:
        ArchiveError: If ``out`` exists or the archive is not of the form described above.
    """
    if out.exists():
        raise ArchiveError(f'{out} exists; remove it or name another folder')
    arrays = _read(archive)
    classes = [str(name) for name in arrays['classes']]
    part = out.with_name(f'{out.name}.part')
    shutil.rmtree(part, ignore_errors=True)
    counts = {}
    for split in SPLITS:
        for name in classes:
            (part / split / name).mkdir(parents=True)
        jpeg, offset = arrays[f'{split}_jpeg'], arrays[f'{split}_offset']
        for number, label in enumerate(arrays[f'{split}_label']):
            file = part / split / classes[label] / f'{number:05}.jpg'
            file.write_bytes(jpeg[offset[number] : offset[number + 1]].tobytes())
        counts[split] = len(arrays[f'{split}_label'])
    part.replace(out)
    return counts


def _read(archive: Path) -> dict[str, np.ndarray]:
    if not archive.is_file():
        raise ArchiveError(f'there is no file {archive}')
    try:
        with np.load(archive, allow_pickle=False) as file:
            missing = [key for key in KEYS if key not in file]
            if missing:
                raise ArchiveError(
                    f'{archive} lacks {", ".join(missing)}; it has {", ".join(file) or "nothing"}'
                )
            arrays = {key: file[key] for key in KEYS}
    except (ValueError, OSError) as error:
        raise ArchiveError(f'{archive} is no .npz file that can be read: {error}') from error
    for split in SPLITS:
        labels, offset = arrays[f'{split}_label'], arrays[f'{split}_offset']
        if len(offset) != len(labels) + 1 or offset[-1] != len(arrays[f'{split}_jpeg']):
            raise ArchiveError(
                f'{archive}: {split}_offset does not fit {split}_label and {split}_jpeg'
            )
        if len(labels) and labels.max() >= len(arrays['classes']):
            raise ArchiveError(
                f'{archive}: {split}_label goes up to {labels.max()}, but there are '
                f'{len(arrays["classes"])} classes'
            )
    return arrays


def main(arguments: list[str] | None = None) -> int:
    """Run the tool; returns the exit status."""
    description, _, epilog = __doc__.partition('Example:')
    parser = argparse.ArgumentParser(
        description=description,
        epilog=f'Example:{epilog}',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('archive', type=Path, help='.npz file')
    parser.add_argument('out', type=Path, help='folder to write, which must not exist')
    args = parser.parse_args(arguments)
    try:
        counts = unpack(args.archive, args.out)
    except ArchiveError as error:
        print(f'{Path(__file__).name}: {error}', file=sys.stderr)
        return 1
    print(f'{args.out}: ' + ', '.join(f'{number} {split}' for split, number in counts.items()))
    return 0


if __name__ == '__main__':
    sys.exit(main())
