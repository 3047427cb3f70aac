"""Annotations in Pascal VOC's form: a list of names, and an XML file for each picture.

mmdet passes over objects whose class the config does not name, and subtracts one from every
coordinate, since the first pixel of Pascal VOC is 1.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from .boxes import box_finding
from .listing import Listing, Picture, Track

_EDGES = ('xmin', 'ymin', 'xmax', 'ymax')


def read_voc(
    file: Path, images: Path, annotations: Path, classes: Sequence[str], subset: bool, track: Track
) -> Listing:
    """Read a list of names and their XML files, and list what is wrong in them.

    Args:
        file: Text file with a name a line.
        images: Folder of the pictures, ``<name>.jpg`` each.
        annotations: Folder of ``<name>.xml``.
        classes: Names of the classes that the config trains.
        subset: Whether the config means to use only some of the classes.
        track: Shows the progress over the files.
    """
    listing = Listing(objects=0)
    try:
        names = file.read_text(encoding='utf-8').splitlines()
    except (OSError, ValueError) as error:
        listing.add('unreadable annotation', file, str(error))
        return listing
    if not names:
        listing.add('unreadable annotation', file, 'it lists nothing')
    for name, count in Counter(names).items():
        if count > 1:
            listing.add('duplicate id', file, f'{name!r} stands {count} times')
    used, lost = Counter(), Counter()
    names = dict.fromkeys(names)
    for name in track(names, 'annotation', len(names)):
        picture, path = images / f'{name}.jpg', annotations / f'{name}.xml'
        if not path.is_file():
            listing.add('missing file', path, f'the annotation of {name!r} in {file}')
            listing.pictures.append(Picture(picture))
            continue
        try:
            root = ElementTree.parse(path).getroot()
            size = _size(root)
        except (ElementTree.ParseError, LookupError, OSError, ValueError) as error:
            # LookupError: an encoding that Python does not know
            listing.add('unreadable annotation', path, str(error))
            listing.pictures.append(Picture(picture))
            continue
        listing.pictures.append(Picture(picture, size))
        objects = root.findall('object')
        listing.objects += len(objects)
        filled = False
        for number, entry in enumerate(objects, 1):
            place = f'{path}, object {number}'
            label = entry.findtext('name')
            if label not in classes:
                lost[label] += 1
            else:
                used[label] += 1
                filled = filled or (entry.findtext('difficult') or '0').strip() == '0'
            _check_box(entry, size, place, listing)
        if not filled:
            listing.add(
                'no objects', path, 'no object of the config (difficult ones aside) is in it'
            )
    for label, number in lost.items():
        listing.add(
            'class left out' if subset else 'unknown class',
            f'{annotations}, {label}',
            f'{number} objects of class {label!r}, which the config does not name, are left out',
        )
    for label in classes:
        if not used[label]:
            place = f'{file}, {label}'
            listing.add('class without objects', place, f'no object of class {label!r}')
    return listing


def _size(root: ElementTree.Element) -> tuple[int, int] | None:
    """Width and height; None where the file has none and mmdet reads the picture itself."""
    size = root.find('size')
    if size is None:
        return None
    sides = tuple(int(size.findtext(side) or '') for side in ('width', 'height'))
    if min(sides) < 1:
        raise ValueError(f'width and height are {sides[0]} and {sides[1]}')
    return sides


def _check_box(
    entry: ElementTree.Element, size: tuple[int, int] | None, place: str, listing: Listing
) -> None:
    box = entry.find('bndbox')
    try:
        edges = [float(box.findtext(edge)) for edge in _EDGES]
        # As mmdet reads it: whole numbers from 1, the right edge the number of the last pixel.
        x1, y1, x2, y2 = (int(edge) - 1 for edge in edges)
    except (AttributeError, TypeError, ValueError, OverflowError):  # the last two: nan, inf
        listing.add('bad box', place, f'it has no bndbox with numbers {", ".join(_EDGES)}')
        return
    if size is None:
        return
    found = box_finding(x1, y1, x2, y2, *size)
    if found is not None:
        written = f'written [{", ".join(f"{edge:g}" for edge in edges)}], counted from 1'
        listing.add(found[0], place, f'{found[1]} ({written})')
