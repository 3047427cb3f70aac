"""Sets for classification of mmpretrain: folders of classes, a list with labels, or CIFAR's files.

Where classes are folders, mmpretrain numbers them in alphabetical order and compares no names: only
their number must be that of the config's classes.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .listing import Listing, Picture


def read_classification(dataset: Any) -> Listing:
    """List the pictures of a ``CustomDataset`` of mmpretrain (``ImageNet`` is one).

    Args:
        dataset: The data set, not initialised yet.
    """
    listing = Listing()
    root = Path(dataset.img_prefix)
    classes = dataset.CLASSES
    if dataset.ann_file:
        labels = _read_list(Path(dataset.ann_file), root, dataset.with_label, listing)
        place: Path = Path(dataset.ann_file)
    else:
        try:
            samples = dataset.load_data_list()
        except (AssertionError, RuntimeError, OSError) as error:
            listing.add('cannot be built', root, str(error))
            return listing
        labels = []
        for info in samples:
            listing.pictures.append(Picture(Path(info['img_path'])))
            labels += [info['gt_label']] if 'gt_label' in info else []
        place = root
        if dataset.with_label and classes is not None:
            _check_folders(sorted(dataset.folder_to_idx), list(classes), root, listing)
    if dataset.with_label and classes is not None:
        check_labels(labels, classes, place, listing)
    return listing


def check_labels(
    labels: Sequence[int], classes: Sequence[str], place: Path, listing: Listing
) -> None:
    """Note labels that are no class, and classes without a picture."""
    counts = Counter(labels)
    for label in sorted(counts):
        if not 0 <= label < len(classes):
            listing.add(
                'label out of range',
                place,
                f'{counts[label]} pictures have the label {label}; there are {len(classes)} '
                f'classes, 0 to {len(classes) - 1}',
            )
    for label, name in enumerate(classes):
        if not counts[label]:
            listing.add('class without objects', place, f'no picture of class {label}, {name!r}')


def _read_list(file: Path, root: Path, with_label: bool, listing: Listing) -> list[int]:
    """Read a list of `name label` lines; returns the labels."""
    labels = []
    try:
        lines = file.read_text(encoding='utf-8').splitlines()
    except (OSError, ValueError) as error:
        listing.add('unreadable annotation', file, str(error))
        return labels
    if not lines:
        listing.add('unreadable annotation', file, 'it lists nothing')
    for number, line in enumerate(lines, 1):
        name, space, label = line.strip().rpartition(' ')
        if not with_label:
            name = line
        elif not space or not label.isdecimal():
            listing.add(
                'unreadable annotation',
                f'{file}, line {number}',
                f'expected a file name and the number of its class, got {line!r}',
            )
            continue
        else:
            labels.append(int(label))
        listing.pictures.append(Picture(root / name))
    twice = Counter(picture.path for picture in listing.pictures)
    for path, count in twice.items():
        if count > 1:
            listing.add('duplicate id', file, f'{path} stands {count} times')
    return labels


def _check_folders(folders: list[str], classes: list[str], root: Path, listing: Listing) -> None:
    if folders == classes:
        return
    if sorted(folders) == sorted(classes):
        first = next(i for i, name in enumerate(folders) if name != classes[i])
        listing.add(
            'class order',
            root,
            f'folders are numbered in alphabetical order: {folders[first]!r} is class {first}, '
            f'which the config calls {classes[first]!r}',
        )
    elif set(folders) & set(classes):
        unknown = [name for name in folders if name not in classes]
        listing.add('unknown class', root, f'the config does not name {", ".join(unknown[:5])}')
    else:  # such as n01440764 and tench
        listing.add(
            'class names',
            root,
            f'folders {folders[0]}, ... are named otherwise than the classes {classes[0]}, ...: '
            'that they are in the same order cannot be seen',
        )


def read_cifar(dataset: Any) -> Listing:
    """Check the files of CIFAR, in which pictures and labels lie together.

    Args:
        dataset: ``CIFAR10`` or ``CIFAR100`` of mmpretrain, not initialised yet, which must not
            download.
    """
    from mmpretrain.datasets.utils import check_md5  # the sums themselves are mmpretrain's too

    listing = Listing()
    folder = Path(dataset.data_prefix['root']) / dataset.base_folder
    for name, md5 in dataset.train_list + dataset.test_list:
        path = folder / name
        if not path.is_file():
            listing.add('missing file', path, f'a file of {dataset.filename}, {dataset.url}')
        elif not check_md5(str(path), md5):
            listing.add('unreadable annotation', path, f'its MD5 is not {md5}: it is damaged')
    if listing.findings:
        return listing
    samples = dataset.load_data_list()
    listing.stored = len(samples)
    classes = dataset.metainfo['classes']
    check_labels([info['gt_label'] for info in samples], classes, folder, listing)
    return listing
