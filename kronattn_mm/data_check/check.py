"""Check all data sets of a config: annotations first, then every picture once."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dataset import BaseDataset

from ..cost.config import ConfigError, quiet
from .classification import read_cifar, read_classification
from .coco import read_coco
from .entries import SPLITS, Entry, build, entries_of, import_library, is_kind, missing_paths
from .findings import ERROR, Finding
from .listing import Listing, Picture, Track
from .pictures import read_pictures
from .report import DataReport, EntryReport
from .segmentation import read_segmentation
from .voc import read_voc

# Classes that come from CocoDataset and whose files have another form.
_OTHER_JSON = ('CocoPanopticDataset', 'LVISV05Dataset', 'LVISV1Dataset')
_PICTURES = ('.jpg', '.jpeg', '.png', '.ppm', '.pgm', '.bmp', '.tif', '.tiff')


def _silent(items: Iterable, unit: str, total: int) -> Iterable:
    return items


def check_config(
    config: Config,
    splits: Sequence[str] = SPLITS,
    workers: int = 1,
    subset: bool = False,
    track: Track = _silent,
) -> DataReport:
    """Read every annotation and every picture of a config's data sets once.

    Nothing is written and nothing is downloaded. Where test is what val is, it is read once.

    Args:
        config (Config): A whole config of mmdet, mmseg or mmpretrain.
        splits (Sequence[str]): Which of train, val and test. Defaults to all.
        workers (int): Threads that decode pictures. Defaults to 1.
        subset (bool): Whether objects of classes that the config does not name are left out on
            purpose; they are an error otherwise. Defaults to False.
        track (Track): Called with items, what they are and how many; iterates over them and shows
            how far it is. Defaults to showing nothing.

    Returns:
        DataReport: What is there and what is wrong with it.

    Raises:
        ConfigError: The config has none of the splits, or its data is not a matter of files.
        ImportError: The library of the config is not installed.
        ValueError: There is no such split.
    """
    unknown = [split for split in splits if split not in SPLITS]
    if unknown:
        raise ValueError(f'there is no split {unknown[0]!r}; there are {", ".join(SPLITS)}')
    scope = config.get('default_scope')
    import_library(scope)
    entries = [entry for split in splits for entry in entries_of(config, split)]
    if not entries:
        raise ConfigError(f'the config has no data of {", ".join(splits)}')
    reports: list[EntryReport] = []
    seen: list[tuple[dict, Entry]] = []
    digests: dict[str, dict[bytes, Path]] = {}
    for entry in entries:
        source = _source(entry)
        first = next((first for other, first in seen if other == source), None)
        if first is not None:
            reports.append(_same(entry, first))
            continue
        report = _check_entry(entry, scope, workers, subset, track, digests)
        reports.append(report)
        seen.append((source, entry))
    return DataReport(tuple(reports))


def _source(entry: Entry) -> dict[str, Any]:
    """What decides which files a data set reads."""
    left_out = ('pipeline', 'test_mode', 'filter_cfg', 'indices', 'backend_args', 'max_refetch')
    kept = {key: value for key, value in entry.config.items() if key not in left_out}
    return dict(kept, masks=entry.masks)


def _same(entry: Entry, first: Entry) -> EntryReport:
    """Of a data set whose files were read before, as those of another."""
    findings: tuple[Finding, ...] = ()
    if first.split == 'train' and entry.split != 'train':
        text = f'all of it is trained on: it reads the files of {first.name}'
        findings = (Finding('train and test overlap', entry.name, text),)
    kind = str(entry.config.get('type')).rpartition('.')[2]
    return EntryReport(entry.name, kind, findings=findings, same_as=first.name)


def _check_entry(
    entry: Entry,
    scope: str | None,
    workers: int,
    subset: bool,
    track: Track,
    digests: dict[str, dict[bytes, Path]],
) -> EntryReport:
    kind = str(entry.config.get('type')).rpartition('.')[2]
    missing = missing_paths(entry)
    if missing:
        findings = [Finding('missing file', path, text) for path, text in missing]
        return EntryReport(entry.name, kind, findings=tuple(findings))
    try:
        dataset = build(entry, scope)
    except ConfigError as error:
        return EntryReport(
            entry.name, kind, findings=(Finding('cannot be built', entry.name, str(error)),)
        )
    listing = _read_annotations(dataset, entry, subset, track)
    findings = list(listing.findings)
    own: dict[bytes, Path] = {}
    reading = read_pictures(listing.pictures, workers)
    for read in track(reading, 'picture', len(listing.pictures)):
        findings += read.findings
        if read.digest is None:
            continue
        first = own.setdefault(read.digest, read.picture.path)
        if first != read.picture.path:
            findings.append(
                Finding(
                    'same picture twice', str(read.picture.path), f'it is {first}, byte for byte'
                )
            )
    findings += _overlap(entry.split, own, digests)
    digests.setdefault(entry.split, {}).update(own)
    used = None
    if not any(finding.level == ERROR for finding in findings):
        # Errors found say more than what the library would stop with.
        used, stop = _used(dataset)
        findings += [] if stop is None else [Finding('cannot be built', entry.name, stop)]
    return EntryReport(
        entry.name,
        kind,
        pictures=len(listing.pictures) + listing.stored,
        objects=listing.objects,
        used=used,
        findings=tuple(findings),
    )


def _read_annotations(dataset: Any, entry: Entry, subset: bool, track: Track) -> Listing:
    kind = type(dataset)
    with quiet():
        if is_kind(kind, 'CIFAR10'):
            return read_cifar(dataset)
        if is_kind(kind, 'CocoDataset') and not is_kind(kind, *_OTHER_JSON):
            return read_coco(
                Path(dataset.ann_file),
                Path(dataset.data_prefix['img']),
                dataset.metainfo['classes'],
                entry.masks,
                subset,
                track,
            )
        if is_kind(kind, 'XMLDataset'):
            root = Path(dataset.sub_data_root)
            return read_voc(
                Path(dataset.ann_file),
                root / dataset.img_subdir,
                root / dataset.ann_subdir,
                dataset.metainfo['classes'],
                subset,
                track,
            )
        if is_kind(kind, 'BaseSegDataset'):
            return read_segmentation(dataset)
        if is_kind(kind, 'CustomDataset'):
            return read_classification(dataset)
        return _read_any(dataset)


def _read_any(dataset: Any) -> Listing:
    """The pictures of a data set of another kind, as the library lists them."""
    listing = Listing()
    listing.add(
        'not checked',
        type(dataset).__name__,
        'annotations of this kind are not known here; only the pictures are read',
    )
    if not isinstance(dataset, BaseDataset):
        return listing
    try:
        infos = dataset.load_data_list()
    except Exception as error:  # of a data set of any library
        text = ' '.join(str(error).split()) or type(error).__name__
        listing.add('cannot be built', type(dataset).__name__, text)
        return listing
    paths = (value for info in infos if isinstance(info, dict) for value in info.values())
    listing.pictures += [
        Picture(Path(path))
        for path in dict.fromkeys(path for path in paths if isinstance(path, str))
        if path.lower().endswith(_PICTURES)
    ]
    return listing


def _overlap(
    split: str, own: dict[bytes, Path], digests: dict[str, dict[bytes, Path]]
) -> list[Finding]:
    """Pictures that are trained on and tested on: val and test may share theirs."""
    others = [name for name in digests if (name == 'train') != (split == 'train')]
    findings = []
    for name in others:
        for digest in own.keys() & digests[name].keys():
            text = f'it is in {name} too, as {digests[name][digest]}'
            findings.append(Finding('train and test overlap', str(own[digest]), text))
    return sorted(findings, key=lambda finding: finding.place)


def _used(dataset: Any) -> tuple[int | None, str | None]:
    """How many pictures the library itself keeps, or what it stops with."""
    with quiet():
        try:
            if isinstance(dataset, BaseDataset):
                dataset.full_init()
            return len(dataset), None
        except Exception as error:  # of a data set of any library
            return None, ' '.join(str(error).split()) or type(error).__name__
