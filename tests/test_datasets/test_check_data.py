"""`kronattn check-data`: whole sets pass, and every fault that is put into a copy is found."""

import json
import pickle
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

pytest.importorskip('mmengine')

from kronattn_mm.cli.check_data import main
from kronattn_mm.cli.command import COMMANDS
from kronattn_mm.data_check import KINDS, Finding
from kronattn_mm.data_check.boxes import box_finding
from kronattn_mm.data_check.listing import Picture
from kronattn_mm.data_check.pictures import ranges, read_picture

ROOT = Path(__file__).resolve().parents[2]
WIDTH, HEIGHT = 48, 32


def draw(path: Path, seed: int, size: tuple[int, int] = (WIDTH, HEIGHT)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    values = random.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(values).save(path)


def cut(path: Path, share: float = 0.5) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def check(config: Path, *arguments: str) -> tuple[int, dict[str, Counter], dict]:
    """Exit code, findings of each data set counted by kind, and the JSON of a check."""
    out = config.parent / 'report.json'
    code = main([str(config), '--out', str(out), *arguments])
    content = json.loads(out.read_text(encoding='utf-8'))
    found = {
        entry['name']: Counter(finding['kind'] for finding in entry['findings'])
        for entry in content['datasets']
    }
    return code, found, content


def places(content: dict, kind: str) -> list[str]:
    return [
        f'{finding["place"]}: {finding["message"]}'
        for entry in content['datasets']
        for finding in entry['findings']
        if finding['kind'] == kind
    ]


# -- COCO ----------------------------------------------------------------------------------------

COCO_CONFIG = """
default_scope = 'mmdet'
pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_mask=True)]
data = dict(type='CocoDataset', data_root={root!r}, metainfo=dict(classes=('cat', 'dog')))
train_dataloader = dict(dataset=dict(type='RepeatDataset', times=3, dataset=dict(
    ann_file='train.json', data_prefix=dict(img='train/'), pipeline=pipeline,
    filter_cfg=dict(filter_empty_gt=True), **data)))
val_dataloader = dict(dataset=dict(
    ann_file='val.json', data_prefix=dict(img='val/'), test_mode=True, pipeline=pipeline, **data))
test_dataloader = val_dataloader
"""


def polygon(x: float, y: float, w: float, h: float) -> list[list[float]]:
    return [[x, y, x + w, y, x + w, y + h, x, y + h]]


def coco_content(folder: Path, split: str, first: int) -> dict:
    images, annotations = [], []
    for number in range(first, first + 4):
        draw(folder / split / f'{number}.jpg', number)
        images.append(dict(id=number, file_name=f'{number}.jpg', width=WIDTH, height=HEIGHT))
        box = [4, 5, 20, 10]
        annotations.append(
            dict(
                id=number,
                image_id=number,
                category_id=10 + number % 2,
                bbox=box,
                area=200,
                iscrowd=0,
                segmentation=polygon(*box),
            )
        )
    categories = [dict(id=10, name='cat'), dict(id=11, name='dog')]
    return dict(images=images, annotations=annotations, categories=categories)


@pytest.fixture
def coco(tmp_path: Path) -> Callable[..., Path]:
    """Write a set of COCO's form, changed by a function, and return its config."""
    pytest.importorskip('mmdet')
    contents = {
        split: coco_content(tmp_path, split, first) for split, first in (('train', 1), ('val', 5))
    }

    def write(change: Callable[[dict], None] | None = None) -> Path:
        if change is not None:
            change(contents)
        for split, content in contents.items():
            (tmp_path / f'{split}.json').write_text(json.dumps(content), encoding='utf-8')
        config = tmp_path / 'config.py'
        config.write_text(COCO_CONFIG.format(root=str(tmp_path)), encoding='utf-8')
        return config

    return write


def test_whole_coco_set_passes_and_val_is_read_once(coco, capsys):
    code, found, content = check(coco())
    assert code == 0 and not any(found.values())
    entries = {entry['name']: entry for entry in content['datasets']}
    assert list(entries) == ['train.dataset', 'val', 'test']
    assert entries['test']['same_as'] == 'val' and entries['test']['pictures'] == 0
    assert [entries[name]['pictures'] for name in ('train.dataset', 'val')] == [4, 4]
    assert entries['train.dataset']['objects'] == entries['train.dataset']['used'] == 4
    assert '0 errors, 0 warnings' in capsys.readouterr().out


def test_every_fault_of_a_coco_set_is_found(coco, tmp_path, capsys):
    def break_it(contents: dict) -> None:
        train, val = contents['train'], contents['val']
        (tmp_path / 'train' / '1.jpg').unlink()
        cut(tmp_path / 'train' / '2.jpg')
        (tmp_path / 'train' / '3.jpg').write_bytes(b'')
        shutil.copy(tmp_path / 'train' / '4.jpg', tmp_path / 'val' / '5.jpg')
        objects = train['annotations']
        objects[0]['bbox'] = [40, 20, 20, 10]  # beyond the right edge
        objects[1]['bbox'] = [4, 5, 0.5, 10]
        objects[2]['area'] = 0
        objects[3]['segmentation'] = dict(size=[WIDTH, HEIGHT], counts=[WIDTH * HEIGHT])
        train['categories'].append(dict(id=12, name='cow'))
        more = [
            dict(category_id=12),
            dict(category_id=99),
            dict(image_id=99),
            dict(id=4),
            dict(segmentation=[]),
            dict(segmentation=[[1, 2, 3, 4]]),
            dict(bbox=[1, 2, float('nan'), 4]),
            dict(bbox=[1, 2, -3, 4]),
            dict(bbox=[-0.5, 2, 9, 4]),
            dict(area=5000),
        ]
        objects += [
            dict(dict(objects[0], id=20 + number, bbox=[1, 2, 9, 4], area=30), **change)
            for number, change in enumerate(more)
        ]
        val['images'][1]['width'] = 40
        val['annotations'] = val['annotations'][:3]

    code, found, content = check(coco(break_it))
    assert code == 1
    assert found['train.dataset'] == Counter(
        {
            'missing picture': 1,
            'unreadable picture': 2,
            'box outside': 1,
            'box without area': 1,
            'area': 2,
            'unknown class': 1,
            'dangling reference': 2,
            'duplicate id': 1,
            'bad mask': 2,
            'empty mask': 1,
            'bad box': 2,
            'box at the edge': 1,
        }
    )
    assert found['val'] == Counter(
        {'picture size': 1, 'no objects': 1, 'train and test overlap': 1}
    )
    assert 'train/4.jpg' in places(content, 'train and test overlap')[0]
    assert '48 x 32 pixels, its annotation says 40 x 32' in places(content, 'picture size')[0]
    assert "1 objects of class 'cow'" in places(content, 'unknown class')[0]
    printed = capsys.readouterr().out
    assert 'error: train.dataset: unreadable picture (2)' in printed
    assert printed.index('error: train.dataset') < printed.index('warning: train.dataset')


def test_classes_left_out_on_purpose(coco, tmp_path):
    def more_classes(contents: dict) -> None:
        for content in contents.values():
            content['categories'].append(dict(id=12, name='cow'))
            content['annotations'][0]['category_id'] = 12

    config = coco(more_classes)
    code, found, _ = check(config)
    assert code == 1 and found['val']['unknown class'] == 1
    code, found, content = check(config, '--subset')
    assert code == 0 and found['val'] == Counter({'class left out': 1, 'no objects': 1})
    # mmdet leaves the training picture without an object out, and the report says so
    assert content['datasets'][0]['pictures'] == 4 and content['datasets'][0]['used'] == 3


def test_class_that_the_file_lacks_and_another_order(coco):
    def lacking(contents: dict) -> None:
        contents['train']['categories'][0]['name'] = 'kitten'
        contents['val']['categories'].reverse()

    code, found, content = check(coco(lacking))
    assert code == 1
    assert found['train.dataset']['class not in file'] == 1
    assert found['train.dataset']['unknown class'] == 1
    assert found['val'] == Counter({'class order': 1})
    assert "class 0 of the config is 'cat', of the file 'dog'" in places(content, 'class order')[0]


def test_file_that_is_no_annotation(coco, tmp_path):
    config = coco()
    cut(tmp_path / 'train.json')
    (tmp_path / 'val.json').write_text('{"images": []}', encoding='utf-8')
    code, found, content = check(config)
    assert code == 1
    assert found['train.dataset'] == found['val'] == Counter({'unreadable annotation': 1})
    assert 'no JSON' in places(content, 'unreadable annotation')[0]


def test_entries_of_another_type_are_findings(coco, tmp_path):
    """Lists where numbers belong, masks that are no masks, and names that no file can have."""

    def change(content):
        objects = content['train']['annotations']
        objects[0]['segmentation'] = dict(size=20, counts=[1])
        objects[1]['segmentation'] = dict(size=[HEIGHT, WIDTH], counts=['a'])
        objects[2]['segmentation'] = [['a'] * 6]
        objects[3]['image_id'] = [4]
        content['train']['images'][3]['file_name'] = 'a\0b.jpg'

    code, found, content = check(coco(change), '--splits', 'train')
    assert code == 1
    assert found['train.dataset']['bad mask'] == 3
    assert found['train.dataset']['unreadable annotation'] == 1
    assert "a list or dict as its 'image_id'" in places(content, 'unreadable annotation')[0]
    assert 'null byte' in places(content, 'unreadable picture')[0]


@pytest.mark.parametrize(
    ('data', 'message'),
    [
        ("dict(type='ConcatDataset', datasets=['mine'])", "train.datasets.0 is 'mine'"),
        ("dict(type='CocoDataset', data_root=7)", 'train: data_root is 7'),
    ],
)
def test_config_whose_data_is_no_dict_or_no_path(tmp_path, capsys, data, message):
    config = tmp_path / 'config.py'
    config.write_text(f'train_dataloader = dict(dataset={data})')
    with pytest.raises(SystemExit) as stop:
        main([str(config)])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_testing_on_what_is_trained_on(coco, tmp_path):
    config = coco()
    train = ['ann_file=train.json', 'data_prefix.img=train/']
    options = [f'val_dataloader.dataset.{option}' for option in train]
    code, found, content = check(config, '--splits', 'train', 'val', '--cfg-options', *options)
    assert code == 1 and found['val'] == Counter({'train and test overlap': 1})
    assert content['datasets'][1]['same_as'] == 'train.dataset'


def test_missing_folder_names_the_option_that_mends_it(coco, tmp_path):
    config = coco()
    config.write_text(COCO_CONFIG.format(root=str(tmp_path / 'nowhere')), encoding='utf-8')
    code, found, content = check(config)
    assert code == 1 and found['train.dataset'] == Counter({'missing file': 1})
    assert 'train_dataloader.dataset.dataset.data_root=' in places(content, 'missing file')[0]
    option = [f'val_dataloader.dataset.data_root={tmp_path}', '--splits', 'val']
    code, found, _ = check(config, '--cfg-options', *option)
    assert code == 0 and list(found) == ['val']


# -- Pascal VOC ----------------------------------------------------------------------------------

VOC_CONFIG = """
default_scope = 'mmdet'
data = dict(type='VOCDataset', data_root={root!r}, data_prefix=dict(sub_data_root='VOC2007/'))
train_dataloader = dict(dataset=dict(type='ConcatDataset', ignore_keys=['dataset_type'], datasets=[
    dict(ann_file='VOC2007/ImageSets/Main/train.txt', **data),
    dict(ann_file='VOC2007/ImageSets/Main/more.txt', **data)]))
test_dataloader = dict(dataset=dict(
    ann_file='VOC2007/ImageSets/Main/test.txt', test_mode=True, **data))
"""


def voc_object(root: ElementTree.Element, name: str, box: tuple, difficult: int = 0) -> None:
    entry = ElementTree.SubElement(root, 'object')
    ElementTree.SubElement(entry, 'name').text = name
    ElementTree.SubElement(entry, 'difficult').text = str(difficult)
    edges = ElementTree.SubElement(entry, 'bndbox')
    for tag, value in zip(('xmin', 'ymin', 'xmax', 'ymax'), box, strict=True):
        ElementTree.SubElement(edges, tag).text = str(value)


def voc_picture(folder: Path, name: str, objects: list[tuple], seed: int) -> None:
    draw(folder / 'JPEGImages' / f'{name}.jpg', seed)
    root = ElementTree.Element('annotation')
    size = ElementTree.SubElement(root, 'size')
    for tag, value in (('width', WIDTH), ('height', HEIGHT)):
        ElementTree.SubElement(size, tag).text = str(value)
    for entry in objects:
        voc_object(root, *entry)
    (folder / 'Annotations').mkdir(exist_ok=True)
    ElementTree.ElementTree(root).write(folder / 'Annotations' / f'{name}.xml')


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    pytest.importorskip('mmdet')
    folder = tmp_path / 'VOC2007'
    whole = [('cat', (1, 1, WIDTH, HEIGHT))]  # the whole picture, counted from 1
    lists = {'train': ['a', 'b'], 'more': ['c'], 'test': ['d', 'e']}
    for number, name in enumerate('abcde'):
        voc_picture(folder, name, whole, number)
    (folder / 'ImageSets' / 'Main').mkdir(parents=True)
    for split, names in lists.items():
        path = folder / 'ImageSets' / 'Main' / f'{split}.txt'
        path.write_text('\n'.join(names) + '\n', encoding='utf-8')
    config = tmp_path / 'config.py'
    config.write_text(VOC_CONFIG.format(root=str(tmp_path)), encoding='utf-8')
    return config


def test_whole_voc_set_has_only_classes_without_objects(voc):
    code, found, content = check(voc)
    assert code == 0
    assert found == {
        name: Counter({'class without objects': 19})
        for name in ('train.datasets.0', 'train.datasets.1', 'test')
    }
    assert [entry['used'] for entry in content['datasets']] == [2, 1, 2]


def test_every_fault_of_a_voc_set_is_found(voc, tmp_path):
    folder = tmp_path / 'VOC2007'
    faults = [
        ('cat', (0, 1, 20, 20)),  # counted from 0
        ('cat', (5, 5, WIDTH + 9, 20)),
        ('cat', (20, 5, 10, 20)),
        ('cat', (5, 5, 5, 20)),
        ('kitten', (1, 1, 9, 9)),
        ('cat', ('a', 1, 9, 9)),
        ('cat', ('nan', 1, 9, 9)),
    ]
    voc_picture(folder, 'a', faults, 0)
    voc_picture(folder, 'd', [('dog', (1, 1, 9, 9), 1)], 3)
    cut(folder / 'Annotations' / 'b.xml')
    (folder / 'Annotations' / 'c.xml').unlink()
    cut(folder / 'JPEGImages' / 'e.jpg', 0.9)
    (folder / 'ImageSets' / 'Main' / 'test.txt').write_text('d\ne\ne\n', encoding='utf-8')
    code, found, content = check(voc)
    assert code == 1
    for counts in found.values():
        assert counts.pop('class without objects') >= 18
    assert found == {
        'train.datasets.0': Counter(
            {
                'box at the edge': 1,
                'box outside': 1,
                'bad box': 3,
                'box without area': 1,
                'unknown class': 1,
                'unreadable annotation': 1,
            }
        ),
        'train.datasets.1': Counter({'missing file': 1}),
        'test': Counter({'unreadable picture': 1, 'duplicate id': 1, 'no objects': 1}),
    }
    assert "'kitten'" in places(content, 'unknown class')[0]


# -- segmentation --------------------------------------------------------------------------------

SEG_CONFIG = """
default_scope = 'mmseg'
data = dict(
    type='BaseSegDataset', data_root={root!r}, img_suffix='.jpg', seg_map_suffix='.png',
    metainfo=dict(classes=('a', 'b', 'c'), palette=[[0, 0, 0], [1, 1, 1], [2, 2, 2]]),
    reduce_zero_label={reduced})
train_dataloader = dict(dataset=dict(
    data_prefix=dict(img_path='images/train', seg_map_path='labels/train'), **data))
val_dataloader = dict(dataset=dict(
    data_prefix=dict(img_path='images/val', seg_map_path='labels/val'), **data))
"""


def draw_labels(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.uint8)).save(path)


@pytest.fixture
def segmentation(tmp_path: Path) -> Callable[..., Path]:
    pytest.importorskip('mmseg')
    random = np.random.default_rng(0)
    for split, first in (('train', 0), ('val', 4)):
        for number in range(first, first + 4):
            draw(tmp_path / 'images' / split / f'{number}.jpg', number)
            values = random.choice([0, 1, 2, 255], (HEIGHT, WIDTH))
            draw_labels(tmp_path / 'labels' / split / f'{number}.png', values)

    def write(reduced: bool = False) -> Path:
        config = tmp_path / 'config.py'
        config.write_text(SEG_CONFIG.format(root=str(tmp_path), reduced=reduced), encoding='utf-8')
        return config

    return write


def test_whole_label_maps_pass(segmentation):
    code, found, content = check(segmentation())
    assert code == 0 and not any(found.values())
    assert [entry['used'] for entry in content['datasets']] == [4, 4]


def test_every_fault_of_label_maps_is_found(segmentation, tmp_path):
    train = tmp_path / 'labels' / 'train'
    (train / '0.png').unlink()
    draw_labels(train / '1.png', np.zeros((HEIGHT, WIDTH, 3)))  # colours
    draw_labels(train / '2.png', np.zeros((HEIGHT + 1, WIDTH)))
    values = np.zeros((HEIGHT, WIDTH))
    values[0, :5], values[1, :2] = 3, 200
    draw_labels(train / '3.png', values)
    draw_labels(train / '77.png', values)
    cut(tmp_path / 'labels' / 'val' / '4.png')
    code, found, content = check(segmentation())
    assert code == 1
    assert found['train'] == Counter(
        {
            'missing label map': 1,
            'label map': 2,
            'label out of range': 1,
            'label map without picture': 1,
        }
    )
    assert found['val'] == Counter({'label map': 1})
    text = places(content, 'label out of range')[0]
    assert '7 of 1536 pixels hold 3, 200; allowed are 0 to 2, 255' in text


def test_links_that_go_in_circles(segmentation, tmp_path):
    config = segmentation()
    folder = next(path for path in tmp_path.rglob('*.jpg')).parent
    (folder / 'again').symlink_to('.')
    code, _, content = check(config)
    assert code == 1
    assert 'symbolic links' in places(content, 'unreadable annotation')[0]


def test_reduced_zero_label_allows_one_more(segmentation, tmp_path):
    draw_labels(tmp_path / 'labels' / 'train' / '0.png', np.full((HEIGHT, WIDTH), 3))
    assert check(segmentation(reduced=True))[0] == 0
    assert check(segmentation(reduced=False))[0] == 1


# -- classification ------------------------------------------------------------------------------

CLS_CONFIG = """
default_scope = 'mmpretrain'
data = dict(type='CustomDataset', data_root={root!r}, metainfo=dict(classes={classes!r}))
train_dataloader = dict(dataset=dict(data_prefix='train', **data))
val_dataloader = dict(dataset=dict(data_prefix='val', ann_file={ann_file!r}, **data))
"""


@pytest.fixture
def folders(tmp_path: Path) -> Callable[..., Path]:
    pytest.importorskip('mmpretrain')
    for number in range(4):
        name = ('cat', 'dog')[number % 2]
        draw(tmp_path / 'train' / name / f'{number}.png', number)
        draw(tmp_path / 'val' / name / f'{number}.png', 10 + number)

    def write(classes: tuple[str, ...] = ('cat', 'dog'), ann_file: str = '') -> Path:
        config = tmp_path / 'config.py'
        text = CLS_CONFIG.format(root=str(tmp_path), classes=classes, ann_file=ann_file)
        config.write_text(text, encoding='utf-8')
        return config

    return write


def test_folders_of_classes(folders, tmp_path):
    code, found, content = check(folders())
    assert code == 0 and not any(found.values())
    assert [entry['used'] for entry in content['datasets']] == [4, 4]
    code, found, _ = check(folders(('dog', 'cat')))
    assert code == 1 and found['train'] == Counter({'class order': 1})
    code, found, content = check(folders(('cat', 'cow')))
    assert code == 1 and found['train'] == Counter({'unknown class': 1})
    code, found, _ = check(folders(('Felis catus', 'Canis lupus')))
    assert code == 0 and found['train'] == Counter({'class names': 1})
    code, found, content = check(folders(('cat', 'dog', 'cow')))
    assert code == 1 and found['train'] == Counter({'cannot be built': 1})
    assert 'number of subfolders (2)' in places(content, 'cannot be built')[0]


def test_list_of_labels(folders, tmp_path):
    lines = ['cat/0.png 0', 'dog/1.png 2', 'dog/9.png 0', 'cat/2.png', 'cat/0.png 0']
    (tmp_path / 'labels.txt').write_text('\n'.join(lines), encoding='utf-8')
    cut(tmp_path / 'val' / 'dog' / '1.png')
    code, found, content = check(folders(ann_file='labels.txt'))
    assert code == 1
    assert found['val'] == Counter(
        {
            'label out of range': 1,
            'unreadable annotation': 1,
            'duplicate id': 1,
            'unreadable picture': 1,
            'missing picture': 1,
            'class without objects': 1,
        }
    )
    assert 'labels.txt, line 4' in places(content, 'unreadable annotation')[0]


def test_only_a_report_is_replaced(folders, tmp_path, capsys):
    config = folders()
    text = config.read_text()
    for out, words in ((config, 'is no report of this command'), (tmp_path, 'is a folder')):
        with pytest.raises(SystemExit) as stop:
            main([str(config), '--out', str(out)])
        assert stop.value.code == 2
        assert words in capsys.readouterr().err
    assert config.read_text() == text
    assert check(config)[0] == check(config)[0] == 0  # the second replaces the first's


def test_list_in_another_encoding(folders, tmp_path):
    config = folders()
    name = tmp_path / 'list.txt'
    name.write_bytes('caf\u00e9.jpg 0\n'.encode('latin-1'))
    option = f'train_dataloader.dataset.ann_file={name}'
    code, _, content = check(config, '--splits', 'train', '--cfg-options', option)
    assert code == 1
    assert places(content, 'unreadable annotation')[0].startswith(str(name))


def test_cifar_is_not_downloaded(tmp_path):
    """Damaged files are named; nothing is fetched, as mmpretrain would on its own."""
    pytest.importorskip('mmpretrain')
    config = tmp_path / 'config.py'
    config.write_text(
        "default_scope = 'mmpretrain'\n"
        f"val_dataloader = dict(dataset=dict(type='CIFAR10', data_root={str(tmp_path)!r}, "
        "split='test'))\n",
        encoding='utf-8',
    )
    (tmp_path / 'cifar-10-batches-py').mkdir()
    with (tmp_path / 'cifar-10-batches-py' / 'test_batch').open('wb') as stream:
        pickle.dump({}, stream)
    code, found, content = check(config)
    assert code == 1
    assert found['val'] == Counter({'missing file': 5, 'unreadable annotation': 1})
    assert 'cifar-10-python.tar.gz' in places(content, 'missing file')[0]


def test_another_kind_of_set_has_its_pictures_read(tmp_path, monkeypatch):
    """A set of a class of the reader's own, of whose annotations nothing is known."""
    (tmp_path / 'pairs_of_pictures.py').write_text(
        'from mmengine.dataset import BaseDataset\n'
        'from mmengine.registry import DATASETS\n'
        '@DATASETS.register_module(force=True)\n'
        'class PairsOfPictures(BaseDataset):\n'
        '    pass\n',
        encoding='utf-8',
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    draw(tmp_path / 'left.png', 0)
    draw(tmp_path / 'right.png', 1)
    cut(tmp_path / 'right.png')
    pairs = dict(left=str(tmp_path / 'left.png'), right=str(tmp_path / 'right.png'), scale=2)
    file = tmp_path / 'pairs.json'
    file.write_text(json.dumps(dict(metainfo={}, data_list=[pairs])), encoding='utf-8')
    config = tmp_path / 'config.py'
    config.write_text(
        "custom_imports = dict(imports=['pairs_of_pictures'])\n"
        "train_dataloader = dict(dataset=dict(type='PairsOfPictures', data_prefix=dict(), "
        f'ann_file={str(file)!r}))\n',
        encoding='utf-8',
    )
    code, found, content = check(config)
    assert code == 1 and content['datasets'][0]['pictures'] == 2
    assert found['train'] == Counter({'not checked': 1, 'unreadable picture': 1})


# -- parts and the command -----------------------------------------------------------------------


@pytest.mark.parametrize(
    'box, kind',
    [
        ((0, 0, 48, 32), None),
        ((0, 0, 48.04, 32), None),
        ((0, 0, 49, 32), 'box at the edge'),
        ((0, 0, 49.5, 32), 'box outside'),
        ((50, 3, 50.5, 20), 'box outside'),
        ((48, 3, 48, 20), 'box outside'),
        ((3, 3, 3.9, 20), 'box without area'),
        ((3, 3, 2, 20), 'bad box'),
        (('x', 3, 2, 20), 'bad box'),
        ((3, 3, float('inf'), 20), 'bad box'),
    ],
)
def test_boxes(box, kind):
    found = box_finding(*box, WIDTH, HEIGHT)
    assert (found and found[0]) == kind


def test_picture_turned_by_its_exif_tag(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.new('RGB', (WIDTH, HEIGHT))
    image.save(tmp_path / 'turned.jpg', exif=exif)
    assert not read_picture(Picture(tmp_path / 'turned.jpg', (HEIGHT, WIDTH))).findings
    (finding,) = read_picture(Picture(tmp_path / 'turned.jpg', (WIDTH, HEIGHT))).findings
    assert finding.kind == 'picture size' and 'EXIF' in finding.message


def test_ranges_and_kinds():
    assert ranges({255, 0, 1, 2, 7}) == '0 to 2, 7, 255'
    with pytest.raises(ValueError, match='no kind'):
        Finding('broken', 'here', 'somehow')
    assert set(KINDS.values()) == {'error', 'warning'}


def test_mistakes_are_one_line(tmp_path, capsys):
    assert COMMANDS['check-data'][0] == 'kronattn_mm.cli.check_data'
    empty = tmp_path / 'empty.py'
    empty.write_text('model = dict()\n', encoding='utf-8')
    remote = tmp_path / 'remote.py'
    remote.write_text(
        "train_dataloader = dict(dataset=dict(type='CocoDataset', data_root='s3://bucket/'))\n",
        encoding='utf-8',
    )
    for arguments, message in (
        ([str(tmp_path / 'none.py')], 'there is no config file'),
        ([str(empty)], 'the config has no data of train, val, test'),
        ([str(remote)], 'only files can be checked'),
        ([str(empty), '--examples', '-1'], '--examples must be 0 or more'),
        ([str(empty), '--workers', '0'], 'invalid positive integer'),
    ):
        with pytest.raises(SystemExit) as error:
            main(arguments)
        assert error.value.code == 2
        printed = capsys.readouterr().err
        assert message in printed and 'Traceback' not in printed


def test_examples_are_limited(coco, tmp_path, capsys):
    def empty(contents: dict) -> None:
        contents['val']['annotations'] = contents['val']['annotations'][:1]

    config = coco(empty)
    main([str(config), '--splits', 'val', '--examples', '1'])
    printed = capsys.readouterr().out
    assert 'no objects (3)' in printed and 'and 2 more' in printed
    main([str(config), '--splits', 'val', '--examples', '0'])
    assert ' more' not in capsys.readouterr().out


# -- real photographs with our own configs --------------------------------------------------------

REAL = {
    'coco_mini': (
        'efficient_attention/mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco.py',
        [
            'train_dataloader.dataset.data_root={data}/',
            'train_dataloader.dataset.ann_file=annotations/instances_train.json',
            'train_dataloader.dataset.data_prefix.img=train/',
            'val_dataloader.dataset.data_root={data}/',
            'val_dataloader.dataset.ann_file=annotations/instances_val.json',
            'val_dataloader.dataset.data_prefix.img=val/',
        ],
        {'train': (119, 987), 'val': (60, 556)},
    ),
    'voc_mini': (
        'shift_and_balance/ssd/small/ssd_mobilenetv2-x1.0_voc-mini.py',
        [
            'train_dataloader.dataset.dataset.data_root={data}/',
            'val_dataloader.dataset.data_root={data}/',
        ],
        {'train.dataset': (96, 578), 'val': (71, 371)},
    ),
    'bccd_mini': (
        'shift_and_balance/ssd/small/ssd_mobilenetv2-x0.5_bccd.py',
        ['train_dataloader.dataset.data_root={data}/', 'val_dataloader.dataset.data_root={data}/'],
        {'train': (292, 3941), 'val': (72, 945)},
    ),
    'seg_mini': (
        'kronecker_attention/segmentation/deeplabv2_mobilenet-v2-d16_kao-kv_120_camvid-161x161.py',
        ['train_dataloader.dataset.data_root={data}', 'val_dataloader.dataset.data_root={data}'],
        {'train': (160, None), 'val': (80, None)},
    ),
}


@pytest.mark.parametrize('name', REAL)
def test_real_sets_have_no_errors(shared, tmp_path, name):
    """The counts are those of each set's SOURCE.md (coco_mini's include crowds)."""
    config, options, counts = REAL[name]
    data = shared / 'data' / name
    out = tmp_path / 'report.json'
    options = [option.format(data=data) for option in options]
    arguments = ['--splits', 'train', 'val', '--out', str(out), '--cfg-options', *options]
    assert main([str(ROOT / 'configs' / config), *arguments]) == 0
    content = json.loads(out.read_text(encoding='utf-8'))
    found = {entry['name']: (entry['pictures'], entry['objects']) for entry in content['datasets']}
    assert found == counts
    kinds = {finding['kind'] for entry in content['datasets'] for finding in entry['findings']}
    assert kinds <= {'class without objects'}
