"""Label maps of mmsegmentation: a picture of class numbers beside every picture."""

from pathlib import Path
from typing import Any

from .listing import LabelMap, Listing, Picture


def read_segmentation(dataset: Any) -> Listing:
    """List the pictures of a data set of mmseg and the values that their label maps may hold.

    Args:
        dataset: A ``BaseSegDataset``, not initialised yet; listing needs no file to be opened.
    """
    listing = Listing()
    allowed = allowed_values(dataset)
    names = set()
    try:
        infos = dataset.load_data_list()
    except (OSError, ValueError) as error:  # a list that is no text, links that go in circles
        place = dataset.ann_file or dataset.data_prefix.get('img_path')
        listing.add('unreadable annotation', place, str(error)[:200])
        return listing
    for info in infos:
        names.add(info.get('seg_map_path'))
        labels = None
        if 'seg_map_path' in info:
            labels = LabelMap(Path(info['seg_map_path']), allowed)
        listing.pictures.append(Picture(Path(info['img_path']), labels=labels))
    folder = dataset.data_prefix.get('seg_map_path')
    if not listing.pictures:
        place = dataset.ann_file or dataset.data_prefix.get('img_path')
        listing.add('unreadable annotation', place, f'no picture *{dataset.img_suffix} is listed')
    elif folder is not None and not dataset.ann_file:  # with a list, maps beside it are not meant
        for path in sorted(Path(folder).rglob(f'*{dataset.seg_map_suffix}')):
            if str(path) not in names:
                listing.add('label map without picture', path, 'there is no picture of that name')
    return listing


def allowed_values(dataset: Any) -> frozenset[int]:
    """The values that a label map of a data set may hold, in the file.

    ``reduce_zero_label`` makes 0 the value to ignore and lowers the others by one; a label map
    (``metainfo`` with some of the classes) is read by the numbers of all classes.
    """
    number = len(dataset.metainfo['classes'])
    if dataset.label_map is not None:
        values = set(dataset.label_map)
    else:
        values = set(range(number + bool(dataset.reduce_zero_label)))
    return frozenset(values | {dataset.ignore_index, 255})
