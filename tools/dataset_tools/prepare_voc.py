"""Pascal VOC 2007, 2012 and the extra segmentations (SBD) in the layout of the configs.

Written are ROOT/VOC2007/ and ROOT/VOC2012/ (data/VOCdevkit/); of SBD, label maps
ROOT/VOC2012/SegmentationClassAug/ and lists aug.txt and trainaug.txt, made by mmsegmentation's own
voc_aug.py out of ROOT/VOCaug/. Detection needs the parts 2007, 2007-test and 2012, segmentation
2012 and sbd. The sums are those in torchvision's source. An interrupted download goes on where it
stopped; the archives are kept in ROOT/archives/ and may be removed afterwards.

Example:
    python tools/dataset_tools/prepare_voc.py --parts 2007 2007-test --dry-run
"""

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from fetching import Archive, FetchError, Part, add_arguments, names_in, run

# Bytes, for the disk space: as TensorFlow Datasets lists them (url_checksums/voc.txt); SBD's is an
# estimate.
_SIZES = {'2007': 460032000, '2007-test': 451020800, '2012': 1999639040, 'sbd': 1_500_000_000}
_CONVERTER = '.mim/tools/dataset_converters/voc_aug.py'

# Lists and the folders in which every name of a list must be.
_DETECTION = (('JPEGImages', '.jpg'), ('Annotations', '.xml'))
_LISTS = {
    '2007': [('VOC2007/ImageSets/Main/trainval.txt', _DETECTION)],
    '2007-test': [('VOC2007/ImageSets/Main/test.txt', _DETECTION)],
    '2012': [
        ('VOC2012/ImageSets/Main/trainval.txt', _DETECTION),
        (
            'VOC2012/ImageSets/Segmentation/trainval.txt',
            (('JPEGImages', '.jpg'), ('SegmentationClass', '.png')),
        ),
    ],
    'sbd': [
        (
            'VOC2012/ImageSets/Segmentation/aug.txt',
            (('JPEGImages', '.jpg'), ('SegmentationClassAug', '.png')),
        )
    ],
}


def parts() -> list[Part]:
    """The parts, with the sums that torchvision has in its source.

    Raises:
        FetchError: torchvision is not installed.
    """
    try:
        from torchvision.datasets import SBDataset
        from torchvision.datasets.voc import DATASET_YEAR_DICT
    except ImportError as error:
        raise FetchError(
            f'the sums of the archives are in torchvision, which is missing ({error}); install it '
            'with `pip install torchvision`'
        ) from error
    found = []
    for name in ('2007', '2007-test', '2012'):
        entry, size = DATASET_YEAR_DICT[name], _SIZES[name]
        archive = Archive(
            entry['url'], ('md5', entry['md5']), 'torchvision.datasets.voc', size, size
        )
        found.append(Part(name, archive, strip='VOCdevkit'))
    size = _SIZES['sbd']
    archive = Archive(
        SBDataset.url, ('md5', SBDataset.md5), 'torchvision.datasets.SBDataset', size, size // 4
    )
    wanted = ('dataset/cls/', 'dataset/train.txt', 'dataset/val.txt')
    return [*found, Part('sbd', archive, 'benchmark_RELEASE', wanted, into='VOCaug')]


def finish(root: Path, names: Sequence[str]) -> None:
    """Make label maps and lists of SBD's files, unless they are there.

    Raises:
        FetchError: mmsegmentation is not installed, or VOC 2012 is not there.
    """
    lists = root / 'VOC2012' / 'ImageSets' / 'Segmentation'
    if 'sbd' not in names or (lists / 'aug.txt').is_file():
        return
    if not (lists / 'train.txt').is_file():
        raise FetchError(f'{lists}/train.txt is missing: the part sbd needs the part 2012 first')
    out = root / 'VOC2012' / 'SegmentationClassAug'
    script = converter()
    before, sys.argv = sys.argv, ['voc_aug.py', str(root), str(root / 'VOCaug'), '-o', str(out)]
    try:
        script.main()  # writes the lists last
    except AssertionError as error:
        raise FetchError(f'mmsegmentation finds other numbers of pictures: {error}') from error
    finally:
        sys.argv = before


def converter() -> ModuleType:
    """mmsegmentation's voc_aug.py."""
    spec = importlib.util.find_spec('mmseg')
    places = []
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        places = [package / _CONVERTER, package.parent / _CONVERTER.removeprefix('.mim/')]
    script = next((place for place in places if place.is_file()), None)
    if script is None:
        raise FetchError(
            'the part sbd needs tools/dataset_converters/voc_aug.py of mmsegmentation, which is '
            'not installed; install it with `pip install onedl-mmsegmentation`'
        )
    spec = importlib.util.spec_from_file_location('voc_aug', script)
    module = importlib.util.module_from_spec(spec)
    sys.modules['voc_aug'] = module  # its worker processes look for its functions there
    spec.loader.exec_module(module)
    return module


def check(root: Path, names: Sequence[str]) -> list[str]:
    """Look for every file that the lists of the parts name."""
    wrong = []
    for name in names:
        for relative, folders in _LISTS[name]:
            file = root / relative
            if not file.is_file():
                wrong.append(f'{file} is missing')
                continue
            listed = file.read_text(encoding='utf-8', errors='replace').split()
            print(f'{file}: {len(listed):,} pictures')
            if not listed:
                wrong.append(f'{file} is empty: remove it and {root}/.{name}.unpacked, run again')
            for folder, suffix in folders:
                place = file.parents[2] / folder
                there = names_in(place)
                lacking = sorted(entry for entry in listed if f'{entry}{suffix}' not in there)
                if lacking:
                    wrong.append(
                        f'{place} lacks {len(lacking):,} of {len(listed):,} files that {file} '
                        f'lists, such as {lacking[0]}{suffix}'
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
    add_arguments(parser, 'data/VOCdevkit', list(_LISTS))
    arguments = parser.parse_args(argv)
    try:
        found = parts()
    except FetchError as error:
        print(f'{parser.prog}: error: {error}', file=sys.stderr)
        return 1
    return run(parser, arguments, found, check, finish)


if __name__ == '__main__':
    sys.exit(main())
