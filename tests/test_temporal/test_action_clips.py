"""The made clips: what the annotation says is what the frames show."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / 'tools' / 'dataset_tools' / 'make_action_clips.py'


def test_only_actions_move(clips: ModuleType, photographs: Path):
    """With a camera on a tripod and no drift, frames differ within an action and nowhere else."""
    recipe = clips.Recipe(jitter=0, drift=0, frames=128)
    source = clips.Photographs(
        photographs / 'annotations' / 'instances_train.json', photographs / 'train'
    )
    shown = set()
    for seed in range(12):
        frames, actions = clips.make_clip(np.random.default_rng(seed), source, recipe)
        moving = np.zeros(128, bool)
        for action in actions:
            moving[action.start : action.stop] = True
            shown.add(action.label)
            assert recipe.shortest <= action.stop - action.start <= recipe.longest
        rest = frames[0].astype(int)
        away = np.array([np.abs(frame - rest).max() for frame in frames])
        assert not away[~moving].any()  # back at the same place after each action
        steps = np.array(
            [np.abs(a.astype(int) - b).max() for a, b in zip(frames, frames[1:], strict=False)]
        )
        # A step into, within or out of an action changes the picture, but for one over a turning
        # point, which the frames before and after may mirror.
        assert (steps[moving[1:] | moving[:-1]] > 0).mean() > 0.85
        assert all(away[[action.start, action.stop - 1]].all() for action in actions)
    assert shown == set(clips.MOTIONS)


@pytest.mark.parametrize('label', ['slide', 'climb', 'spin', 'pulse', 'circle'])
def test_each_motion_is_what_its_name_says(clips: ModuleType, label: str):
    phases = (np.arange(64) + 0.5) / 64
    poses = np.array([clips.pose_in_action(label, phase, 2, 100, 0.2) for phase in phases])
    x, y, angle, factor = poses.T
    expected = dict(
        slide=(True, False, False, False),
        climb=(False, True, False, False),
        spin=(False, False, True, False),
        pulse=(False, False, False, True),
        circle=(True, True, False, False),
    )[label]
    assert (np.ptp(x) > 0, np.ptp(y) > 0, np.ptp(angle) > 0, np.ptp(factor) > 0) == expected
    for phase in (0, 0.5, 1):  # two repetitions: rest at the start, after one, and at the end
        at_rest = np.array(clips.pose_in_action(label, phase, 2, 100, 0.2))
        at_rest[2] %= 360
        np.testing.assert_allclose(at_rest, [0, 0, 0, 1], atol=1e-9)
    if label == 'circle':
        np.testing.assert_allclose(np.hypot(x, y - 20), 20)
    with pytest.raises(ValueError, match="label must be one of slide, .* got 'jump'"):
        clips.pose_in_action('jump', 0, 1, 100, 0.2)


def test_object_is_drawn_where_its_pose_says(clips: ModuleType):
    """A white square on black: its centre of mass, its size and its colour, which mixes nothing."""
    cutout = np.zeros((160, 160, 4), np.float32)
    cutout[40:120, 40:120] = [200, 200, 200, 1]
    background = np.zeros((104, 104, 3), np.float32)
    for scale, angle in ((0.5, 0), (0.25, 30), (0.125, 90)):
        pose = np.array([50.0, 30.0, angle, scale])
        frame = clips.render(background, cutout, pose, np.array([2.0, -1.0]), 100)[..., 0] / 200
        rows, columns = np.indices(frame.shape)
        assert (frame * columns).sum() / frame.sum() == pytest.approx(52, abs=0.3)
        assert (frame * rows).sum() / frame.sum() == pytest.approx(29, abs=0.3)
        assert frame.sum() == pytest.approx((80 * scale) ** 2, rel=0.06)
        assert frame.max() <= 1


def test_layout_and_split(made: Path):
    content = json.loads((made / 'annotations.json').read_text())
    database = content['database']
    assert [entry['subset'] for entry in database.values()] == ['training'] * 6 + ['validation'] * 2
    for name, entry in database.items():
        files = sorted(path.name for path in (made / 'frames' / name).iterdir())
        assert files == [f'image_{number:05d}.jpg' for number in range(1, 97)]
        assert entry['duration'] == 12
        assert entry['annotations']
        for truth in entry['annotations']:
            assert 0 < truth['segment'][0] < truth['segment'][1] < 12
        frame = cv2.imread(str(made / 'frames' / name / files[0]))
        low = entry['subset'] == 'training'  # blue tells which photographs a clip is made of
        assert frame[..., 0].mean() < 100 if low else frame[..., 0].mean() > 140


def test_more_clips_leave_the_others_as_they_are(
    clips: ModuleType, photographs: Path, made: Path, tmp_path: Path
):
    recipe = clips.Recipe(train=2, val=1, frames=96, shortest=12, longest=40)
    clips.make_action_clips(photographs, tmp_path / 'few', recipe)
    for name in ('training_00002', 'validation_00001'):
        for file in ('image_00001.jpg', 'image_00050.jpg'):
            assert (tmp_path / 'few' / 'frames' / name / file).read_bytes() == (
                made / 'frames' / name / file
            ).read_bytes()
    other = clips.make_action_clips(photographs, tmp_path / 'other', replace(recipe, seed=1))
    before = json.loads((made / 'annotations.json').read_text())['database']
    assert other['database']['training_00001'] != before['training_00001']


def test_mistakes_and_what_they_leave(
    clips: ModuleType, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(ValueError, match='4 <= shortest <= longest <= frames / 2, got .*frames=64'):
        clips.Recipe(frames=64)
    with pytest.raises(ValueError, match='jitter must lie between 0 and size / 8, got 9'):
        clips.Recipe(jitter=9)
    with pytest.raises(ValueError, match='seed must be at least 0, got -1'):
        clips.Recipe(seed=-1)
    recipe = clips.Recipe(train=1, val=1, frames=32, shortest=8, longest=16)
    monkeypatch.setattr(clips.cv2, 'imwrite', lambda *arguments: False)
    with pytest.raises(OSError, match='could not be written'):
        clips.make_action_clips(photographs, tmp_path / 'out', recipe)
    assert not list(tmp_path.iterdir())  # no half set, no draft
    (tmp_path / 'out').mkdir()
    for arguments, words in (
        ([photographs, tmp_path / 'out'], 'exists already: remove it, or name another folder'),
        ([tmp_path / 'nothing', tmp_path / 'new'], 'nothing is not a folder'),
        ([photographs, tmp_path / 'new', '--train', '0'], 'train must be at least 1, got 0'),
    ):
        done = subprocess.run(
            [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True
        )
        assert done.returncode == 1
        assert done.stderr.startswith('make_action_clips.py: error: ')
        assert words in done.stderr
        assert done.stderr.count('\n') == 1


def test_clips_of_real_photographs(clips: ModuleType, shared: Path, tmp_path: Path):
    recipe = clips.Recipe(train=2, val=1, frames=64, shortest=8, longest=24)
    content = clips.make_action_clips(shared / 'data' / 'coco_mini', tmp_path / 'out', recipe)
    assert len(content['database']) == 3
    frame = cv2.imread(str(tmp_path / 'out' / 'frames' / 'training_00001' / 'image_00064.jpg'))
    assert frame.shape == (32, 32, 3)
    assert frame.std() > 5
