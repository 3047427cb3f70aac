"""The scenes of digits: masks, split, determinism, COCO form, and what an interruption leaves."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('sklearn', reason='the digits come with scikit-learn')
from PIL import Image
from pycocotools.coco import COCO
from sklearn.datasets import load_digits

SCRIPT = Path(__file__).resolve().parents[2] / 'tools' / 'dataset_tools' / 'make_digit_scenes.py'
_spec = importlib.util.spec_from_file_location('make_digit_scenes', SCRIPT)
scenes = importlib.util.module_from_spec(_spec)
sys.modules['make_digit_scenes'] = scenes  # dataclasses look their module up
_spec.loader.exec_module(scenes)

SMALL = scenes.Recipe(train=6, val=3)


@pytest.fixture(scope='module')
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('digits') / 'set'
    assert scenes.make_digit_scenes(folder, SMALL)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob('*'))
        if path.is_file()
    }


def entries(folder: Path, split: str) -> dict:
    return json.loads((folder / 'annotations' / f'instances_{split}.json').read_text())


def test_masks_are_the_pixels_that_each_digit_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose on black, with an ink of its own and without soft edges for each digit: the pixels of
    that colour must be the mask, to the last one."""
    source = load_digits()
    render, inks = scenes.render_digit, []
    monkeypatch.setattr(scenes, 'texture', lambda rng, size: np.zeros((size, size, 3), np.float32))
    monkeypatch.setattr(
        scenes, 'render_digit', lambda *arguments: (render(*arguments) > 0.5).astype(np.float32)
    )

    def ink(rng: np.random.Generator, paper: np.ndarray) -> np.ndarray:
        inks.append(20 * (len(inks) + 1))
        return np.full(3, inks[-1] / 255)

    monkeypatch.setattr(scenes, 'ink_colour', ink)
    recipe = replace(scenes.Recipe(), min_digits=8, max_digits=8)
    picture, instances = scenes.compose_scene(
        np.random.default_rng(3), source.images, source.target, np.arange(100), recipe
    )
    assert len(inks) == len(instances) >= 4
    for value, instance in zip(inks, instances, strict=True):
        assert np.array_equal(picture[..., 0] == value, instance.mask)
        assert instance.label == source.target[instance.sample]
    assert np.array_equal(picture[..., 0] > 0, np.any([one.mask for one in instances], axis=0))


def test_overlap_leaves_the_promised_share_visible() -> None:
    source = load_digits()
    recipe = replace(scenes.Recipe(), min_digits=9, max_digits=9)
    covered = 0
    for seed in range(5):
        areas = []
        original = scenes.render_digit

        def render(*arguments, areas=areas, original=original):
            opacity = original(*arguments)
            areas.append((opacity > 0.5).sum())
            return opacity

        scenes.render_digit = render
        try:
            _, instances = scenes.compose_scene(
                np.random.default_rng(seed), source.images, source.target, np.arange(200), recipe
            )
        finally:
            scenes.render_digit = original
        if len(instances) < len(areas):
            continue  # one was left out, so the lists do not correspond
        for area, instance in zip(areas, instances, strict=True):
            assert instance.mask.sum() >= recipe.min_visible * area
            covered += instance.mask.sum() < area
    assert covered > 0, 'no overlap at all was tried'


def test_rendering_turns_and_enlarges() -> None:
    pixels = load_digits().images[0]
    upright = scenes.render_digit(pixels, 40, 0)
    assert upright.min() >= 0 and upright.max() == 1
    assert 30 <= upright.shape[0] <= 44
    assert scenes.render_digit(pixels, 80, 0).shape[0] == pytest.approx(2 * upright.shape[0], abs=3)
    assert not np.array_equal(upright, scenes.render_digit(pixels, 40, 15)[: upright.shape[0]])


@pytest.mark.parametrize('split', ['train', 'val'])
def test_is_valid_coco(made: Path, split: str) -> None:
    coco = COCO(str(made / 'annotations' / f'instances_{split}.json'))
    assert [entry['name'] for entry in coco.cats.values()] == list(scenes.CLASSES)
    assert len(coco.imgs) == getattr(SMALL, split)
    for image in coco.imgs.values():
        assert Image.open(made / split / image['file_name']).size == (160, 160)
        annotations = coco.loadAnns(coco.getAnnIds(image['id']))
        assert annotations
        for one in annotations:
            mask = coco.annToMask(one).astype(bool)
            assert one['area'] == mask.sum() > 0
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            assert one['bbox'] == [
                columns[0],
                rows[0],
                columns[-1] + 1 - columns[0],
                rows[-1] + 1 - rows[0],
            ]
            assert one['category_id'] == load_digits().target[one['sample']] + 1


def test_ground_truth_scores_one(made: Path) -> None:
    from pycocotools.cocoeval import COCOeval

    truth = COCO(str(made / 'annotations' / 'instances_val.json'))
    found = truth.loadRes(
        [
            dict(
                image_id=one['image_id'],
                category_id=one['category_id'],
                score=1.0,
                segmentation=one['segmentation'],
            )
            for one in truth.anns.values()
        ]
    )
    result = COCOeval(truth, found, 'segm')
    result.evaluate()
    result.accumulate()
    result.summarize()
    assert result.stats[0] == pytest.approx(1)


def test_train_and_val_share_no_digit(made: Path) -> None:
    source = load_digits()
    rows = scenes.split_samples(source.target, seed=0)
    assert not set(rows['train']) & set(rows['val'])
    assert set(rows['train']) | set(rows['val']) == set(range(len(source.target)))
    for split in rows:
        assert set(source.target[rows[split]]) == set(range(10))
        used = {one['sample'] for one in entries(made, split)['annotations']}
        assert used <= set(rows[split].tolist())


def test_seed_decides_everything(made: Path, tmp_path: Path) -> None:
    scenes.make_digit_scenes(tmp_path / 'same', SMALL)
    assert files(tmp_path / 'same') == files(made)
    scenes.make_digit_scenes(tmp_path / 'other', replace(SMALL, seed=1))
    assert files(tmp_path / 'other')['val/000001.png'] != files(made)['val/000001.png']


def test_reused_if_intact_and_mended_if_not(tmp_path: Path) -> None:
    folder = tmp_path / 'set'
    assert scenes.make_digit_scenes(folder, SMALL)
    before = files(folder)
    stamps = {path: path.stat().st_mtime_ns for path in folder.rglob('*')}
    assert not scenes.make_digit_scenes(folder, SMALL)
    assert stamps == {path: path.stat().st_mtime_ns for path in folder.rglob('*')}

    picture = folder / 'train' / '000002.png'
    picture.write_bytes(picture.read_bytes()[:500])
    assert not scenes.is_intact(folder, SMALL)
    assert scenes.make_digit_scenes(folder, SMALL)
    assert files(folder) == before

    (folder / 'val' / '000001.png').unlink()
    assert scenes.make_digit_scenes(folder, SMALL)
    assert files(folder) == before
    assert scenes.make_digit_scenes(folder, replace(SMALL, val=2)), 'other settings'
    assert len(entries(folder, 'val')['images']) == 2
    assert [path.name for path in tmp_path.iterdir()] == ['set'], 'a draft was left behind'


def test_interruption_leaves_the_old_set(tmp_path: Path) -> None:
    folder = tmp_path / 'set'

    def interrupt(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scenes.make_digit_scenes(folder, SMALL, interrupt)
    assert list(tmp_path.iterdir()) == []
    scenes.make_digit_scenes(folder, SMALL)
    before = files(folder)
    with pytest.raises(KeyboardInterrupt):
        scenes.make_digit_scenes(folder, replace(SMALL, seed=5), interrupt)
    assert files(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ['set']


def test_never_replaces_what_it_did_not_make(tmp_path: Path) -> None:
    (tmp_path / 'thesis.txt').write_text('four years')
    with pytest.raises(FileExistsError, match='not made by this tool'):
        scenes.make_digit_scenes(tmp_path, SMALL)
    with pytest.raises(FileExistsError, match='not made by this tool'):
        scenes.make_digit_scenes(tmp_path / 'thesis.txt', SMALL)
    assert (tmp_path / 'thesis.txt').read_text() == 'four years'


@pytest.mark.parametrize(
    'change, message',
    [
        (dict(train=0), 'train must be at least 1, got 0'),
        (dict(max_digits=2), 'max_digits=2 is below min_digits=3'),
        (dict(size=100), 'max_height=64, size=100'),
        (dict(min_visible=0.0), 'min_visible must lie in .*, got 0.0'),
    ],
)
def test_bad_recipe(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scenes.Recipe(**{**asdict(scenes.Recipe()), **change})


def test_command_line(tmp_path: Path) -> None:
    def call(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)

    out = str(tmp_path / 'set')
    first = call(out, '--train', '3', '--val', '2')
    assert first.returncode == 0 and 'made (3 training and 2 held-out scenes)' in first.stdout
    second = call(out, '--train', '3', '--val', '2')
    assert second.returncode == 0 and 'already there and intact' in second.stdout
    wrong = call(str(SCRIPT), '--train', '3')
    assert wrong.returncode == 1
    assert wrong.stderr.startswith('error: ') and 'Traceback' not in wrong.stderr
