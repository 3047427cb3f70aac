"""A made set of clips: photographs and objects drawn here, composed by make_action_clips.py."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest

TOOLS = Path(__file__).resolve().parents[2] / 'tools' / 'dataset_tools'


@pytest.fixture(scope='session')
def clips() -> ModuleType:
    """The tool, as a module."""
    sys.path.insert(0, str(TOOLS))
    try:
        spec = importlib.util.spec_from_file_location(
            'make_action_clips', TOOLS / 'make_action_clips.py'
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules['make_action_clips'] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(TOOLS))
    return module


@pytest.fixture(scope='session')
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of COCO form: three pictures a half, each with a coloured ellipse and its mask.

    Blue is below 100 in the training half and above 150 in the other, so that a clip tells what it
    was made of.
    """
    folder = tmp_path_factory.mktemp('photographs')
    (folder / 'annotations').mkdir()
    rng = np.random.default_rng(0)
    for split, low in (('train', 0), ('val', 150)):
        (folder / split).mkdir()
        images, annotations = [], []
        for number in range(1, 4):
            picture = cv2.resize(rng.integers(0, 255, (6, 8, 3), np.uint8), (160, 120))
            picture[..., 0] = low + picture[..., 0] // 3
            angle = np.linspace(0, 2 * np.pi, 24, endpoint=False)
            outline = np.stack([80 + 40 * np.cos(angle), 60 + 22 * np.sin(angle)], 1)
            colour = [low + 40, *rng.integers(0, 255, 2).tolist()]
            cv2.fillPoly(picture, [outline.round().astype(int)], colour)
            name = f'{number:03d}.png'
            cv2.imwrite(str(folder / split / name), picture)
            images.append(dict(id=number, file_name=name, height=120, width=160))
            annotations.append(
                dict(
                    id=number,
                    image_id=number,
                    category_id=1,
                    iscrowd=0,
                    area=float(np.pi * 40 * 22),
                    bbox=[40.0, 38.0, 80.0, 44.0],
                    segmentation=[outline.flatten().tolist()],
                )
            )
        content = dict(
            images=images, annotations=annotations, categories=[dict(id=1, name='ellipse')]
        )
        (folder / 'annotations' / f'instances_{split}.json').write_text(json.dumps(content))
    return folder


@pytest.fixture(scope='session')
def made(clips: ModuleType, photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six training and two held-out clips of 96 frames, 32 x 32 pixels."""
    out = tmp_path_factory.mktemp('clips') / 'set'
    recipe = clips.Recipe(train=6, val=2, frames=96, shortest=12, longest=40)
    clips.make_action_clips(photographs, out, recipe)
    return out
