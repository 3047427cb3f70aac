"""Annotations in COCO's form: one JSON file with pictures, objects and classes.

How mmdet numbers classes (``CocoDataset.load_data_list``): it asks the file for the classes that
the config names, and counts what it gets *in the file's order*. A name that the file lacks, or
another order, therefore gives every later class another class's name.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .boxes import box_finding
from .listing import Listing, Picture, Track

_NEEDED = dict(
    images=('id', 'file_name', 'width', 'height'),
    annotations=('id', 'image_id', 'category_id', 'bbox', 'area'),
    categories=('id', 'name'),
)
# What other entries are found by; a number or a word.
_NAMES = ('id', 'image_id', 'category_id', 'file_name', 'name')


def read_coco(
    file: Path, images: Path, classes: Sequence[str], masks: bool, subset: bool, track: Track
) -> Listing:
    """Read an annotation file and list what is wrong in it.

    Args:
        file: The JSON file.
        images: Folder of the pictures.
        classes: Names of the classes that the config trains, in its order.
        masks: Whether the config trains masks: an object without one is an error then.
        subset: Whether the config means to use only some of the file's classes.
        track: Shows the progress over the objects.
    """
    listing = Listing(objects=0)
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        listing.add('unreadable annotation', file, f'it is no JSON: {error}')
        return listing
    parts = _parts(content, file, listing)
    if parts is None:
        return listing
    entries, objects, categories = parts
    names = {category['id']: category['name'] for category in categories}
    _check_classes(classes, categories, file, listing)
    _check_ids(parts, file, listing)

    sizes: dict[Any, tuple[float, float]] = {}
    for entry in entries:
        size = (entry['width'], entry['height'])
        if all(isinstance(side, int) and side > 0 for side in size):
            sizes[entry['id']] = size
            listing.pictures.append(Picture(images / str(entry['file_name']), size))
        else:
            listing.add(
                'unreadable annotation',
                f'{file}, picture {entry["id"]}',
                f'width {size[0]!r} and height {size[1]!r} must be whole numbers above 0',
            )
            listing.pictures.append(Picture(images / str(entry['file_name'])))

    listing.objects = len(objects)
    known = {entry['id'] for entry in entries}
    used = Counter()  # objects by class name
    filled = set()  # pictures with an object that is trained on
    lost: dict[str, int] = defaultdict(int)
    for entry in track(objects, 'object', len(objects)):
        place = f'{file}, object {entry["id"]}'
        if entry['image_id'] not in known:
            listing.add(
                'dangling reference', place, f'there is no picture with the id {entry["image_id"]}'
            )
            continue
        if entry['category_id'] not in names:
            listing.add(
                'dangling reference',
                place,
                f'there is no category with the id {entry["category_id"]}',
            )
            continue
        name = names[entry['category_id']]
        if name not in classes:
            lost[name] += 1
        else:
            used[name] += 1
            if not entry.get('iscrowd') and not entry.get('ignore'):
                filled.add(entry['image_id'])
        if entry['image_id'] in sizes:
            _check_object(entry, sizes[entry['image_id']], masks, place, listing)
    for name, number in lost.items():
        listing.add(
            'class left out' if subset else 'unknown class',
            f'{file}, {name}',
            f'{number} objects of class {name!r}, which the config does not name, are left out',
        )
    for name in classes:
        if name in names.values() and not used[name]:
            listing.add('class without objects', f'{file}, {name}', f'no object of class {name!r}')
    for entry in entries:
        if entry['id'] not in filled:
            listing.add(
                'no objects',
                images / str(entry['file_name']),
                'no object of the config (crowds aside) is on it',
            )
    return listing


def _parts(content: Any, file: Path, listing: Listing) -> tuple[list, list, list] | None:
    """The three lists, without entries that lack something."""
    parts = []
    for key, needed in _NEEDED.items():
        entries = content.get(key) if isinstance(content, dict) else None
        if not isinstance(entries, list) or not entries:
            listing.add('unreadable annotation', file, f'it has no list {key!r} that is not empty')
            return None
        whole = []
        for entry in entries:
            lacking = [name for name in needed if not isinstance(entry, dict) or name not in entry]
            nested = [
                name
                for name in _NAMES
                if isinstance(entry, dict) and isinstance(entry.get(name), (list, dict))
            ]
            if lacking or nested:
                what = (
                    f'has no {lacking[0]!r}'
                    if lacking
                    else f'has a list or dict as its {nested[0]!r}'
                )
                listing.add(
                    'unreadable annotation',
                    file,
                    f'an entry of {key!r} {what}: {json.dumps(entry)[:80]}',
                )
            else:
                whole.append(entry)
        parts.append(whole)
    return tuple(parts)


def _check_classes(
    classes: Sequence[str], categories: Sequence[dict], file: Path, listing: Listing
) -> None:
    names = [category['name'] for category in categories]
    missing = [name for name in classes if name not in names]
    for name in missing:
        listing.add(
            'class not in file',
            f'{file}, {name}',
            f'the config names the class {name!r}, the file does not: mmdet would give the '
            'classes after it the names of others',
        )
    shared = [name for name in names if name in classes]
    if not missing and shared != list(classes) and len(set(names)) == len(names):
        first = next(i for i, name in enumerate(classes) if shared[i] != name)
        listing.add(
            'class order',
            file,
            f'mmdet numbers classes in the order of the file: class {first} of the config is '
            f'{classes[first]!r}, of the file {shared[first]!r}',
        )


def _check_ids(parts: Sequence[list], file: Path, listing: Listing) -> None:
    for key, entries in zip(_NEEDED, parts, strict=True):
        for name in ('id', dict(images='file_name', categories='name').get(key)):
            if name is None:
                continue
            counts = Counter(str(entry[name]) for entry in entries)
            for value, count in counts.items():
                if count > 1:
                    listing.add(
                        'duplicate id', f'{file}, {key}', f'{name} {value} stands {count} times'
                    )


def _check_object(
    entry: dict, size: tuple[float, float], masks: bool, place: str, listing: Listing
) -> None:
    box = entry['bbox']
    if not isinstance(box, list) or len(box) != 4:
        listing.add('bad box', place, f'{json.dumps(box)[:80]} is not [x, y, width, height]')
        return
    numbers = all(isinstance(value, (int, float)) for value in box)
    corners = (box[0], box[1], box[0] + box[2], box[1] + box[3]) if numbers else box
    found = box_finding(*corners, *size)
    if found is not None:
        listing.add(found[0], place, found[1])
    area = entry['area']
    if not isinstance(area, (int, float)) or area <= 0:
        listing.add('area', place, f'the area is {area!r}: mmdet passes over the object')
    elif found is None and area > 1.01 * box[2] * box[3] + 1:
        listing.add(
            'area', place, f'the area {area:g} is larger than the box of {box[2] * box[3]:g}'
        )
    mask = entry.get('segmentation')
    if mask:
        _check_mask(mask, size, place, listing)
    elif masks and not entry.get('iscrowd'):
        listing.add('bad mask', place, 'it has no segmentation, and the config trains masks')


def _check_mask(mask: Any, size: tuple[float, float], place: str, listing: Listing) -> None:
    if isinstance(mask, list):
        if not all(isinstance(polygon, list) for polygon in mask):
            listing.add('bad mask', place, 'its polygons are not lists of numbers')
        elif not all(_are_numbers(polygon) for polygon in mask):
            listing.add('bad mask', place, 'a polygon holds something else than numbers')
        elif not any(len(polygon) >= 6 and len(polygon) % 2 == 0 for polygon in mask):
            listing.add('empty mask', place, 'no polygon has three points: mmdet passes over it')
        return
    if not isinstance(mask, dict) or not {'size', 'counts'} <= set(mask):
        listing.add('bad mask', place, 'it is neither polygons nor run lengths')
        return
    if mask['size'] != [size[1], size[0]]:
        listing.add(
            'bad mask',
            place,
            f'its run lengths are for height and width {mask["size"]}, the picture has '
            f'{[size[1], size[0]]}',
        )
    elif not isinstance(mask['counts'], (list, str)) or (
        isinstance(mask['counts'], list) and not _are_numbers(mask['counts'])
    ):
        listing.add('bad mask', place, 'its run lengths are neither numbers nor their short form')
    elif isinstance(mask['counts'], list) and sum(mask['counts']) != size[0] * size[1]:
        listing.add(
            'bad mask',
            place,
            f'its run lengths add up to {sum(mask["counts"])} of {size[0] * size[1]} pixels',
        )


def _are_numbers(values: list) -> bool:
    return {int, float}.issuperset(map(type, values))  # in C: COCO has millions of them
