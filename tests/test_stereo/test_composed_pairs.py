"""The geometry of composed pairs: the right view, moved by the truth, is the left view."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine.registry import DATASETS

from kronattn_mm.datasets.disparity_files import read_pfm

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'tools' / 'dataset_tools'))

from make_stereo_pairs import STEPS, Layer, Recipe, Scene, main, make_stereo_pairs, render  # noqa: E402


def smooth_texture(rng: np.random.Generator, height: int, columns: int) -> np.ndarray:
    cells = rng.uniform(0, 255, (height // 6 + 2, columns // (6 * STEPS) + 2, 3))
    return cv2.resize(cells.astype(np.float32), (columns, height), interpolation=cv2.INTER_CUBIC)


def layers(rng: np.random.Generator, height: int, width: int, plane) -> list[Layer]:
    """A back with ``plane``, and a box at disparity 9.25 in columns 20 to 43, rows 8 to 27."""
    columns = (width + 16) * STEPS
    back = Layer(smooth_texture(rng, height, columns), np.ones((height, columns), bool), 0, plane)
    opaque = np.zeros((height, 24 * STEPS), bool)
    opaque[8:28] = True
    box = Layer(smooth_texture(rng, height, 24 * STEPS), opaque, 20, (9.25, 0.0, 0.0))
    return [back, box]


def warped(scene) -> np.ndarray:
    rows, columns = np.mgrid[: scene.disparity.shape[0], : scene.disparity.shape[1]]
    x = (columns - scene.disparity).astype(np.float32)
    return cv2.remap(scene.right, x, rows.astype(np.float32), cv2.INTER_LINEAR).astype(float)


@pytest.mark.parametrize(
    'plane', [(3.0, 0.0, 0.0), (2.3, 0.0, 0.0), (2.0, 0.02, 0.05), (5.0, -0.03, 0.04)]
)
def test_the_right_view_moved_by_the_truth_is_the_left_view(plane):
    scene = render(layers(np.random.default_rng(0), 40, 96, plane), 40, 96)
    difference = np.abs(warped(scene) - scene.left).mean(2)
    # Beside an edge a pixel shows both layers, differently much in the two views.
    edges = np.abs(np.diff(scene.disparity, axis=1, prepend=0)) > 1
    clear = cv2.dilate(np.uint8(scene.occluded | edges), np.ones((1, 5))) == 0
    assert clear.mean() > 0.6
    assert difference[clear].max() < 12 and difference[clear].mean() < 2
    assert difference[scene.occluded].mean() > 20


def test_truth_and_occlusion_are_where_the_layers_say():
    scene = render(layers(np.random.default_rng(0), 40, 96, (3.0, 0.0, 0.0)), 40, 96)
    wanted = np.full((40, 96), 3.0)
    wanted[8:28, 20:44] = 9.25
    np.testing.assert_allclose(scene.disparity, wanted)
    hidden = np.zeros((40, 96), bool)
    hidden[:, :3] = True  # the right view ends there
    hidden[8:28, 14:20] = True  # covered by the box, which is 6.25 columns nearer to the left
    assert np.array_equal(scene.occluded, hidden)


def test_whole_disparities_give_equal_pixels():
    rng = np.random.default_rng(0)
    back, box = layers(rng, 40, 96, (4.0, 0.0, 0.0))
    scene = render([back, Layer(box.picture, box.opaque, 20, (9.0, 0.0, 0.0))], 40, 96)
    rows, columns = np.nonzero(~scene.occluded)
    moved = columns - scene.disparity[rows, columns].astype(int)
    assert np.array_equal(scene.left[rows, columns], scene.right[rows, moved])


@pytest.fixture(scope='module')
def photographs(tmp_path_factory) -> Path:
    """A folder of COCO form with two pictures in each half and an object on each."""
    root = tmp_path_factory.mktemp('coco')
    rng = np.random.default_rng(0)
    (root / 'annotations').mkdir()
    for split in ('train', 'val'):
        (root / split).mkdir()
        images, annotations = [], []
        for number in (1, 2):
            picture = smooth_texture(rng, 120, 160 * STEPS)[:, ::STEPS]
            cv2.imwrite(str(root / split / f'{number}.png'), picture)
            images.append(dict(id=number, file_name=f'{number}.png', height=120, width=160))
            polygon = [30, 20, 110, 25, 100, 90, 35, 80]
            annotations.append(
                dict(
                    id=number,
                    image_id=number,
                    category_id=1,
                    bbox=[30, 20, 80, 70],
                    area=4500,
                    iscrowd=0,
                    segmentation=[polygon],
                )
            )
        content = dict(
            images=images, annotations=annotations, categories=[dict(id=1, name='thing')]
        )
        (root / 'annotations' / f'instances_{split}.json').write_text(json.dumps(content))
    return root


RECIPE = Recipe(train=3, val=2, height=48, width=80, max_disparity=16, noise=0)


def test_a_set_is_made_reused_and_read(photographs, tmp_path):
    out = tmp_path / 'pairs'
    assert make_stereo_pairs(photographs, out, RECIPE)
    assert not make_stereo_pairs(photographs, out, RECIPE)
    load = [dict(type='kronattn_mm.LoadStereoPair'), dict(type='kronattn_mm.LoadDisparity')]
    for split, count in (('TRAIN', 3), ('TEST', 2)):
        prefix = dict(
            image=f'frames_cleanpass/{split}',
            disparity=f'disparity/{split}',
            occlusion=f'disparity_occlusions/{split}',
        )
        data = DATASETS.build(
            dict(
                type='kronattn_mm.SceneFlowDataset',
                data_root=str(out),
                data_prefix=prefix,
                pipeline=load,
            )
        )
        assert len(data) == count
        for item in data:
            disparity = item['gt_disparity']
            assert 0 < disparity.min() and disparity.max() < 16
            assert len(np.unique(disparity)) > 1 and 0 < item['gt_occluded'].mean() < 0.5
    # A pair depends on its number, not on how many there are.
    make_stereo_pairs(photographs, tmp_path / 'more', Recipe(**vars(RECIPE) | dict(train=4)))
    for side in ('left', 'right'):
        name = f'frames_cleanpass/TRAIN/{side}/000003.png'
        assert (out / name).read_bytes() == (tmp_path / 'more' / name).read_bytes()


def test_what_is_there_already_is_not_replaced(photographs, tmp_path):
    (tmp_path / 'pairs').mkdir()
    (tmp_path / 'pairs' / 'mine.txt').write_text('kept')
    with pytest.raises(FileExistsError, match='is not a set of .* with these settings'):
        make_stereo_pairs(photographs, tmp_path / 'pairs', RECIPE)
    assert [file.name for file in tmp_path.iterdir()] == ['pairs']
    assert (tmp_path / 'pairs' / 'mine.txt').read_text() == 'kept'


@pytest.mark.parametrize(
    ('setting', 'message'),
    [
        (dict(max_disparity=90), 'between 8 and half the width of 80, got 90'),
        (dict(max_objects=1), 'max_objects=1 is below min_objects=2'),
        (dict(slanted=1.5), 'slanted must lie between 0 and 1, got 1.5'),
        (dict(noise=-1), 'noise must lie between 0 and 50, got -1'),
        (dict(height=8), 'height must be at least 16, got 8'),
        (dict(train=0), 'train must be at least 1, got 0'),
        (dict(seed=-1), 'seed must be at least 0, got -1'),
    ],
)
def test_settings_that_make_no_sense_are_named(setting, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**vars(RECIPE) | setting)


def test_mistakes_on_the_command_line_are_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, message in (
        (['nowhere', 'out'], 'error: nowhere is not a folder'),
        (['nowhere', 'out', '--noise', '99'], 'noise must lie between 0 and 50, got 99.0'),
    ):
        assert main(words) == 1
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit, match='2'):
        main(['nowhere', 'out', '--train', '0'])
    assert "invalid positive integer value: '0'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_real_photographs(shared, tmp_path):
    """Objects of COCO keep their shape, and the truth fits both views as far as noise allows."""
    recipe = Recipe(train=2, val=2, noise=0)
    assert make_stereo_pairs(shared / 'data' / 'coco_mini', tmp_path / 'pairs', recipe)
    for split in ('TRAIN', 'TEST'):
        for name in ('000001', '000002'):
            folder = tmp_path / 'pairs'
            left, right = (
                cv2.imread(str(folder / 'frames_cleanpass' / split / side / f'{name}.png'))
                for side in ('left', 'right')
            )
            disparity = read_pfm(folder / 'disparity' / split / 'left' / f'{name}.pfm')
            mask = folder / 'disparity_occlusions' / split / 'left' / f'{name}.png'
            occluded = cv2.imread(str(mask), cv2.IMREAD_GRAYSCALE) > 0
            scene = Scene(left, right, disparity, occluded)
            difference = np.abs(warped(scene) - left).mean(2)
            wrong = np.abs(warped(replace(scene, disparity=disparity + 2)) - left).mean(2)
            assert difference[~occluded].mean() < 0.5 * wrong[~occluded].mean()
            assert difference[~occluded].mean() < 6 < difference[occluded].mean()
