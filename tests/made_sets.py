"""Small sets with known content in the layouts of COCO, Pascal VOC and folders of classes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PIL import Image

SIZE = (80, 60)  # width, height


def draw(path: Path, random: np.random.Generator, size: tuple[int, int] = SIZE) -> None:
    """Write a picture of noise, which no other is equal to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = random.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def boxes(random: np.random.Generator, number: int) -> list[tuple[int, int, int, int]]:
    """Boxes x, y, width, height that lie inside a picture."""
    corners, sides = random.integers(0, 40, (number, 2)), random.integers(8, 20, (number, 2))
    return [tuple(map(int, row)) for row in np.concatenate([corners, sides], 1)]


def draw_coco(folder: Path, splits: Mapping[str, int], classes: Sequence[str]) -> None:
    """Rectangles of the first two classes with exact polygons.

    Args:
        folder: Gets ``annotations/instances_<split>.json`` and ``<split>/``.
        splits: Number of pictures of each split.
        classes: Names of all classes, numbered from 1.
    """
    (folder / 'annotations').mkdir(parents=True)
    for seed, (split, pictures) in enumerate(splits.items()):
        random = np.random.default_rng(seed)
        images, annotations = [], []
        for number in range(1, pictures + 1):
            draw(folder / split / f'{number}.jpg', random)
            entry = dict(id=number, file_name=f'{number}.jpg', width=SIZE[0], height=SIZE[1])
            images.append(entry)
            for x, y, w, h in boxes(random, int(random.integers(1, 5))):
                annotations.append(
                    dict(
                        id=len(annotations) + 1,
                        image_id=number,
                        category_id=int(random.integers(1, 3)),
                        bbox=[x, y, w, h],
                        area=w * h,
                        iscrowd=0,
                        segmentation=[[x, y, x + w, y, x + w, y + h, x, y + h]],
                    )
                )
        categories = [dict(id=index, name=name) for index, name in enumerate(classes, 1)]
        content = dict(images=images, annotations=annotations, categories=categories)
        file = folder / 'annotations' / f'instances_{split}.json'
        file.write_text(json.dumps(content), encoding='utf-8')


def draw_voc(
    folder: Path, splits: Mapping[str, int], classes: Sequence[str], seed: int = 0
) -> None:
    """Boxes, some of them difficult, and label maps.

    Args:
        folder: Gets ``JPEGImages``, ``Annotations``, ``SegmentationClass`` and the lists.
        splits: Number of pictures of each list, such as ``Main/trainval``.
        classes: Names of the classes that boxes have.
        seed: Of what is drawn.
    """
    random = np.random.default_rng(seed)
    for name in ('Annotations', 'SegmentationClass'):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for split, pictures in splits.items():
        names = [f'{split.replace("/", "_")}_{number}' for number in range(pictures)]
        for name in names:
            draw(folder / 'JPEGImages' / f'{name}.jpg', random)
            labels = random.choice([0, 3, 15, 255], SIZE[::-1]).astype(np.uint8)
            Image.fromarray(labels).save(folder / 'SegmentationClass' / f'{name}.png')
            root = ElementTree.Element('annotation')
            size = ElementTree.SubElement(root, 'size')
            for tag, value in zip(('width', 'height'), SIZE, strict=True):
                ElementTree.SubElement(size, tag).text = str(value)
            for x, y, w, h in boxes(random, int(random.integers(1, 5))):
                entry = ElementTree.SubElement(root, 'object')
                ElementTree.SubElement(entry, 'name').text = str(random.choice(classes))
                difficult = int(random.random() < 0.2)
                ElementTree.SubElement(entry, 'difficult').text = str(difficult)
                box = ElementTree.SubElement(entry, 'bndbox')
                edges = dict(xmin=x + 1, ymin=y + 1, xmax=x + w, ymax=y + h)  # counted from 1
                for tag, value in edges.items():
                    ElementTree.SubElement(box, tag).text = str(value)
            ElementTree.ElementTree(root).write(folder / 'Annotations' / f'{name}.xml')
        file = folder / 'ImageSets' / f'{split}.txt'
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('\n'.join(names) + '\n', encoding='utf-8')
