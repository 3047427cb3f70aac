"""COCO 2017 in the layout of the configs: download, check, unpack.

Written are ROOT/annotations/, ROOT/train2017/ and ROOT/val2017/ (data/coco/). An interrupted
download goes on where it stopped; the archives are kept in ROOT/archives/ and may be removed
afterwards. Evaluation needs only the parts val and annotations (1.1 GB of 20.4). COCO publishes no
sums; those of TensorFlow Datasets are used. Whether every picture can be decoded is told by
`kronattn check-data CONFIG`.

Example:
    python tools/dataset_tools/prepare_coco.py --dry-run
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from fetching import Archive, Part, add_arguments, names_in, run

_TFDS = 'tensorflow/datasets, url_checksums/coco.txt'
_SITE = 'http://images.cocodataset.org'

PARTS = [
    Part(
        'annotations',
        Archive(
            f'{_SITE}/annotations/annotations_trainval2017.zip',
            ('sha256', '113a836d90195ee1f884e704da6304dfaaecff1f023f49b6ca93c4aaae470268'),
            _TFDS,
            size=252907541,
            unpacked=840_000_000,
        ),
    ),
    Part(
        'val',
        Archive(
            f'{_SITE}/zips/val2017.zip',
            ('sha256', '4f7e2ccb2866ec5041993c9cf2a952bbed69647b115d0f74da7ce8f4bef82f05'),
            _TFDS,
            size=815585330,
            unpacked=830_000_000,
        ),
    ),
    Part(
        'train',
        Archive(
            f'{_SITE}/zips/train2017.zip',
            ('sha256', '69a8bb58ea5f8f99d24875f21416de2e9ded3178e903f1f7603e283b9e06d929'),
            _TFDS,
            size=19336861798,
            unpacked=19_700_000_000,
        ),
    ),
]


def check(root: Path, parts: Sequence[str]) -> list[str]:
    """Compare the folders with what the annotation files list."""
    wrong = []
    for split in ('train', 'val'):
        file, folder = root / 'annotations' / f'instances_{split}2017.json', root / f'{split}2017'
        if 'annotations' in parts and not file.is_file():
            wrong.append(f'{file} is missing')
        if split not in parts:
            continue
        there = names_in(folder)
        if not there:
            wrong.append(f'{folder} is missing or empty')
        if not file.is_file():
            print(f'{folder}: {len(there):,} files; without {file} nothing says how many there are')
            continue
        try:
            listed = {image['file_name'] for image in json.loads(file.read_bytes())['images']}
        except (ValueError, KeyError, TypeError) as error:
            wrong.append(f'{file} is damaged ({error}): remove it and run this again')
            continue
        print(f'{folder}: {len(listed & there):,} of {len(listed):,} pictures')
        if there and listed - there:
            first = min(listed - there)
            wrong.append(f'{folder} lacks {len(listed - there):,} pictures, such as {first}')
    return wrong


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    description, _, example = __doc__.partition('Example:')
    parser = argparse.ArgumentParser(
        description=description,
        epilog=f'example:{example}',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser, 'data/coco', [part.name for part in PARTS])
    return run(parser, parser.parse_args(argv), PARTS, check)


if __name__ == '__main__':
    sys.exit(main())
