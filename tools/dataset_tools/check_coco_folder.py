"""Check a folder of COCO form before training on it: files, annotations, every picture.

Accepted layouts, where FOLDER is what is given::

    FOLDER/annotations/instances_train.json       FOLDER/train/       and the same with val
    FOLDER/annotations/instances_train2017.json   FOLDER/train2017/   and the same with val2017

Example::

    python tools/dataset_tools/check_coco_folder.py data/my_photographs
"""

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

_LAYOUTS = (('train', 'val'), ('train2017', 'val2017'))


class DataError(ValueError):
    """The folder cannot be used; the message names the file and what was expected of it."""


@dataclass(frozen=True)
class Split:
    """One half of a data set.

    Attributes:
        annotations: Path of the annotation file.
        images: Folder of the pictures.
        content: The annotation file's content.
    """

    annotations: Path
    images: Path
    content: dict[str, Any]


@dataclass(frozen=True)
class CocoFolder:
    """A checked data set.

    Attributes:
        train: The training half.
        val: The held-out half.
        classes: Class names in the order in which mmdet numbers them (the file's own).
    """

    train: Split
    val: Split
    classes: tuple[str, ...]


def find_splits(folder: str | Path) -> tuple[tuple[Path, Path], tuple[Path, Path]]:
    """Find (annotation file, picture folder) of train and of val.

    Raises:
        DataError: No accepted layout is complete; says what the nearest one lacks.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f'{folder} is not a folder')
    lacking: list[list[str]] = []
    for names in _LAYOUTS:
        splits = tuple(
            (folder / 'annotations' / f'instances_{name}.json', folder / name) for name in names
        )
        missing = [str(file) for file, _ in splits if not file.is_file()]
        missing += [f'{images}/' for _, images in splits if not images.is_dir()]
        if not missing:
            return splits
        lacking.append(missing)
    raise DataError(
        f'{folder} lacks {", ".join(min(lacking, key=len))} (expected: '
        'annotations/instances_{train,val}.json beside train/ and val/, or '
        'annotations/instances_{train,val}2017.json beside train2017/ and val2017/)'
    )


def read_annotations(path: Path) -> dict[str, Any]:
    """Read an annotation file and check what training relies on.

    Raises:
        DataError: It is not JSON, holds no pictures, no objects or no classes, or an object
            names a picture or class that is not there or has no mask.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f'{path} is not a JSON file: {error}') from error
    for key, word in (
        ('images', 'pictures'),
        ('annotations', 'objects'),
        ('categories', 'classes'),
    ):
        entries = content.get(key) if isinstance(content, dict) else None
        if not isinstance(entries, list) or not entries:
            raise DataError(f'{path} holds no {word} (expected a list {key!r} that is not empty)')
        for name in dict(
            images=('id', 'file_name', 'height', 'width'),
            categories=('id', 'name'),
            annotations=('id', 'image_id', 'category_id', 'bbox', 'area', 'iscrowd'),
        )[key]:
            lacking = next(
                (entry for entry in entries if not isinstance(entry, dict) or name not in entry),
                None,
            )
            if lacking is not None:
                raise DataError(
                    f'{path}: an entry of {key!r} has no {name!r}: {json.dumps(lacking)[:120]}'
                )
    for key in ('images', 'categories', 'annotations'):
        counts = Counter(entry['id'] for entry in content[key])
        twice = [identity for identity, count in counts.items() if count > 1]
        if twice:
            raise DataError(f'{path}: the id {twice[0]!r} stands more than once in {key!r}')
    for image in content['images']:
        if not all(
            isinstance(image[name], int) and image[name] > 0 for name in ('height', 'width')
        ):
            raise DataError(
                f'{path}: picture {image["id"]} has the height {image["height"]!r} and '
                f'the width {image["width"]!r}, which must be whole numbers above 0'
            )
    images = {image['id'] for image in content['images']}
    classes = {category['id'] for category in content['categories']}
    for entry in content['annotations']:
        check_object(path, entry)
        if entry['image_id'] not in images:
            raise DataError(
                f'{path}: object {entry["id"]} is on picture {entry["image_id"]}, '
                'which is not in the list of pictures'
            )
        if entry['category_id'] not in classes:
            raise DataError(
                f'{path}: object {entry["id"]} is of class {entry["category_id"]}, '
                'which is not in the list of classes'
            )
        if not entry.get('segmentation') and not entry.get('iscrowd'):
            raise DataError(
                f'{path}: object {entry["id"]} has no mask (expected a '
                "'segmentation' of polygons or run lengths)"
            )
    return content


def check_object(path: Path, entry: dict[str, Any]) -> None:
    """Check the form of an object's box and mask.

    Raises:
        DataError: The box is not four finite numbers, width and height not negative, or the mask
            is neither polygons nor run lengths. (Boxes without an area and polygons of fewer than
            three points stand in COCO itself; mmdet passes over them.)
    """
    box, mask = entry['bbox'], entry.get('segmentation')
    if not (
        isinstance(box, list)
        and len(box) == 4
        and all(map(_finite, box))
        and box[2] >= 0
        and box[3] >= 0
    ):
        raise DataError(
            f'{path}: object {entry["id"]} has the box {json.dumps(box)[:80]} '
            '(expected [x, y, width, height])'
        )
    polygons = isinstance(mask, list) and all(
        isinstance(polygon, list) and all(map(_finite, polygon)) for polygon in mask
    )
    run_lengths = isinstance(mask, dict) and {'size', 'counts'} <= set(mask)
    if mask and not polygons and not run_lengths:
        raise DataError(
            f'{path}: object {entry["id"]} has the mask {json.dumps(mask)[:80]} '
            '(expected polygons [[x, y, x, y, x, y, ...], ...] or run lengths with '
            "'size' and 'counts')"
        )


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def check_picture(path: Path, entry: dict[str, Any]) -> None:
    """Decode a picture to its end and compare its size with its entry.

    Raises:
        DataError: It is missing, truncated, or of another size.
    """
    if not path.is_file():
        raise DataError(f'{path} is missing (named by the annotation file)')
    try:
        with Image.open(path) as image:
            size = image.size
            image.draft('RGB', (1, 1))  # JPEG: reads everything, computes an eighth
            image.load()
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f'{path} cannot be read, it may be truncated: {error}') from error
    expected = (entry['width'], entry['height'])
    if size != expected and size[::-1] != expected:  # turned by its EXIF tag
        raise DataError(
            f'{path} is {size[0]} x {size[1]} pixels, its annotation file says '
            f'{expected[0]} x {expected[1]}'
        )


def check_coco_folder(
    folder: str | Path,
    only: Sequence[str] = (),
    max_pictures: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> CocoFolder:
    """Check a folder of COCO form and read its annotations.

    Args:
        folder: The folder.
        only: Names of the classes to use, all if empty.
        max_pictures: Use at most that many training pictures (the first with objects on them)
            and a quarter as many held-out ones (the first); 0 for all.
        progress: Called with the number of pictures checked and of all pictures.

    Returns:
        What is there. With ``only`` or ``max_pictures``, the content is reduced accordingly.

    Raises:
        DataError: Something is missing or broken.
    """
    found = find_splits(folder)
    contents = [read_annotations(file) for file, _ in found]
    names = [[category['name'] for category in content['categories']] for content in contents]
    if names[0] != names[1]:
        raise DataError(
            f'{found[0][0]} and {found[1][0]} list different classes, or in different '
            f'orders: {names[0][:5]} ... and {names[1][:5]} ...'
        )
    repeated = sorted({name for name in names[0] if names[0].count(name) > 1})
    if repeated:
        raise DataError(f'{found[0][0]} lists class {repeated[0]!r} more than once')
    unknown = [name for name in only if name not in names[0]]
    if unknown:
        raise DataError(
            f'class {unknown[0]!r} is not in {found[0][0]}, which has: {", ".join(names[0])}'
        )
    classes = tuple(name for name in names[0] if not only or name in only)
    if only or max_pictures:
        # Held-out pictures without an object stay: what is found on them counts against AP.
        contents = [
            reduce_content(contents[0], classes, max_pictures, drop_empty=True),
            reduce_content(contents[1], classes, -(-max_pictures // 4), drop_empty=False),
        ]
        for content, (file, _) in zip(contents, found, strict=True):
            if not content['annotations']:
                raise DataError(f'{file} holds no object of the classes {", ".join(classes)}')
    pictures = [
        (images / entry['file_name'], entry)
        for content, (_, images) in zip(contents, found, strict=True)
        for entry in content['images']
    ]
    for number, (path, entry) in enumerate(pictures, 1):
        check_picture(path, entry)
        if progress is not None:
            progress(number, len(pictures))
    train, val = (
        Split(file, images, content)
        for (file, images), content in zip(found, contents, strict=True)
    )
    return CocoFolder(train, val, classes)


def reduce_content(
    content: dict[str, Any], classes: Sequence[str], limit: int, drop_empty: bool
) -> dict[str, Any]:
    """Keep some classes and at most ``limit`` pictures, in their order.

    Args:
        content: Content of an annotation file; it is not changed.
        classes: Names of the classes to keep.
        limit: Largest number of pictures, 0 for all.
        drop_empty: Pass over pictures without an object of these classes (crowds aside).
    """
    categories = [entry for entry in content['categories'] if entry['name'] in classes]
    kept = {entry['id'] for entry in categories}
    objects = [entry for entry in content['annotations'] if entry['category_id'] in kept]
    filled = {entry['image_id'] for entry in objects if not entry['iscrowd']}
    images = [entry for entry in content['images'] if entry['id'] in filled or not drop_empty]
    images = images[: limit or None]
    shown = {entry['id'] for entry in images}
    objects = [entry for entry in objects if entry['image_id'] in shown]
    return dict(content, categories=categories, images=images, annotations=objects)


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        description='Check a folder of COCO form before training on it.',
        epilog='example: python tools/dataset_tools/check_coco_folder.py data/my_photographs',
    )
    parser.add_argument('folder', help='holds annotations/, and train/ and val/ (or train2017/...)')
    args = parser.parse_args()
    from tqdm import tqdm

    try:
        with tqdm(unit='picture', disable=None) as bar:

            def advance(done: int, total: int) -> None:
                bar.total = total
                bar.update()

            data = check_coco_folder(args.folder, progress=advance)
    except DataError as error:
        print(f'check_coco_folder.py: error: {error}', file=sys.stderr)
        return 1
    for name, split in (('train', data.train), ('val', data.val)):
        print(
            f'{name}: {len(split.content["images"])} pictures, '
            f'{len(split.content["annotations"])} objects'
        )
    print(f'{len(data.classes)} classes: {", ".join(data.classes)}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
