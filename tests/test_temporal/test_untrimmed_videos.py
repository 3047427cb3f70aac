"""The reader of untrimmed videos: windows, truth, and every mistake in one sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.registry import DATASETS, TRANSFORMS

import kronattn_mm.registry  # noqa: F401  (registers the scope)
from kronattn_mm.datasets.untrimmed_videos import clip_segments, window_places

CLASSES = ('slide', 'climb', 'spin', 'pulse', 'circle')
PIPELINE = [dict(type='kronattn_mm.LoadFrames'), dict(type='kronattn_mm.PackSegments')]


def build(root: Path, **changes):
    config = dict(
        type='kronattn_mm.UntrimmedVideoDataset',
        data_root=str(root),
        ann_file='annotations.json',
        subset='training',
        window=64,
        metainfo=dict(classes=CLASSES),
        pipeline=PIPELINE,
    )
    return DATASETS.build(dict(config, **changes))


@pytest.fixture
def broken(made: Path, tmp_path: Path) -> Callable[[Callable[[dict], None]], Path]:
    """Return a copy of the set whose annotations went through a function."""

    def change(edit: Callable[[dict], None]) -> Path:
        content = json.loads((made / 'annotations.json').read_text())
        edit(content['database'])
        root = tmp_path / 'copy'
        shutil.copytree(made, root)
        (root / 'annotations.json').write_text(json.dumps(content))
        return root

    return change


@pytest.mark.parametrize(
    ('frames', 'window', 'step', 'places'),
    [
        (192, 128, 32, [(0, 128), (32, 160), (64, 192)]),
        (200, 128, 64, [(0, 128), (64, 192), (72, 200)]),
        (128, 128, 32, [(0, 128)]),
        (50, 128, 32, [(0, 128)]),
    ],
)
def test_windows_cover_a_video(frames: int, window: int, step: int, places: list):
    assert window_places(frames, window, step) == places


def test_segments_are_cut_to_the_window():
    segments = np.array([[0.0, 20.0], [15.0, 40.0], [60.0, 80.0], [90.0, 120.0]])
    inside, kept = clip_segments(segments, 10, 74, 0.7)
    assert kept.tolist() == [1, 2]  # of the first and the last too little is left
    assert inside.tolist() == [[5, 30], [50, 64]]
    inside, kept = clip_segments(segments, 10, 74, 0.5)
    assert kept.tolist() == [0, 1, 2]
    assert inside[0].tolist() == [0, 10]
    assert clip_segments(segments[:0], 0, 64, 0.7)[0].shape == (0, 2)


def test_training_windows_hold_what_the_annotation_says(made: Path):
    dataset = build(made)
    database = json.loads((made / 'annotations.json').read_text())['database']
    assert {dataset.get_data_info(index)['video'] for index in range(len(dataset))} == {
        name for name, entry in database.items() if entry['subset'] == 'training'
    }
    for index in range(len(dataset)):
        packed = dataset[index]
        sample = packed['data_samples']
        assert packed['inputs'].shape == (3, 64, 32, 32)
        assert packed['inputs'].dtype == torch.uint8
        start, stop = sample.window
        wanted = []
        for truth in database[sample.video]['annotations']:
            first, last = (time * 8 for time in truth['segment'])
            seen = min(last, stop) - max(first, start)
            if seen >= 0.7 * (last - first):
                wanted.append([max(first, start) - start, min(last, stop) - start, truth['label']])
        assert wanted
        got = sample.gt_instances
        labels = [CLASSES[label] for label in got.labels.tolist()]
        assert [
            [*segment, label] for segment, label in zip(got.segments.tolist(), labels, strict=True)
        ] == wanted
    held_out = build(made, subset='Validation', test_mode=True, step=32)
    assert len(held_out) == 4  # two windows a clip, whether there is an action in it or not


def test_frames_are_those_of_the_window(made: Path):
    import cv2

    dataset = build(made, test_mode=True, step=32)
    sample = dataset[1]
    assert sample['data_samples'].window == (32, 96)
    name = sample['data_samples'].video
    frame = cv2.imread(str(made / 'frames' / name / 'image_00033.jpg'))
    assert np.array_equal(sample['inputs'][:, 0].permute(1, 2, 0).numpy(), frame)
    long = build(made, test_mode=True, window=128)[0]['inputs']
    assert torch.equal(long[:, 96:], long[:, 95:96].expand(-1, 32, -1, -1))  # the last one, again


def test_classes_are_the_labels_where_none_are_given(made: Path):
    labels = {
        truth['label']
        for entry in json.loads((made / 'annotations.json').read_text())['database'].values()
        for truth in entry['annotations']
    }
    assert build(made, metainfo=None).metainfo['classes'] == tuple(sorted(labels))


def test_ambiguous_stretches_are_passed_over(made: Path, broken):
    def edit(database: dict) -> None:
        for entry in database.values():
            entry['annotations'].append(dict(label='Ambiguous', segment=[1.0, 2.0]))

    plain, more = build(made), build(broken(edit))
    assert len(plain) == len(more)
    one, other = (item[0]['data_samples'].truth['segments'] for item in (plain, more))
    assert np.array_equal(one, other)


def test_transforms_change_all_frames_alike(made: Path):
    raw = build(made, pipeline=[PIPELINE[0]])[0]

    def step(**config) -> np.ndarray:
        return TRANSFORMS.build(config).transform(dict(raw))['clip']

    flipped = step(type='kronattn_mm.FlipFrames', prob=1.0)
    assert np.array_equal(flipped, raw['clip'][:, :, ::-1])
    assert np.array_equal(step(type='kronattn_mm.FlipFrames', prob=0.0), raw['clip'])
    assert step(type='kronattn_mm.ResizeFrames', scale=(20, 30)).shape == (64, 20, 30, 3)
    middle = step(type='kronattn_mm.CropFrames', size=24, random=False)
    assert np.array_equal(middle, raw['clip'][:, 4:28, 4:28])
    np.random.seed(0)
    places = set()
    for _ in range(20):
        part = step(type='kronattn_mm.CropFrames', size=30, random=True)
        (place,) = [
            (top, left)
            for top in range(3)
            for left in range(3)
            if np.array_equal(part, raw['clip'][:, top : top + 30, left : left + 30])
        ]
        places.add(place)
    assert len(places) > 5
    with pytest.raises(ValueError, match='frames of 32 x 32 pixels are too small for a square of'):
        step(type='kronattn_mm.CropFrames', size=40, random=True)


def first(database: dict) -> dict:
    return database['training_00001']


@pytest.mark.parametrize(
    ('edit', 'words'),
    [
        (
            lambda d: first(d)['annotations'].append(dict(label='spin', segment=[11.0, 14.0])),
            "video 'training_00001' of 12.0 s has a segment 'spin' from 11.0 to 14.0 s, which must",
        ),
        (
            lambda d: first(d)['annotations'].append(dict(label='spin', segment=[5.0, 5.0])),
            'from 5.0 to 5.0 s, which must lie inside it and not be empty',
        ),
        (
            lambda d: first(d)['annotations'].append(dict(label='spinn', segment=[1.0, 2.0])),
            "has the label 'spinn', which is not among the classes; did you mean 'spin'",
        ),
        (
            lambda d: first(d)['annotations'].append(dict(label='spin', segment=[1.0])),
            r"expected a 'label' and a 'segment' \[start, end\] in seconds",
        ),
        (lambda d: first(d).pop('duration'), "video 'training_00001' has no 'duration'"),
        (lambda d: first(d).update(duration='12'), "has the duration '12'"),
        (lambda d: first(d).update(annotations=None), 'are no list: null'),
        (
            lambda d: first(d)['annotations'].append(dict(label='spin', segment=['1', '2'])),
            r"expected a 'label' and a 'segment' \[start, end\] in seconds",
        ),
        (lambda d: first(d).update(fps=0), 'must be a number above 0, got 0'),
        (lambda d: first(d).update(fps='8'), "must be a number above 0, got '8'"),
        (lambda d: first(d).pop('fps'), 'has no fps; say at which rate the frames were extracted'),
        (lambda d: d.clear(), "has no videos \\(expected an object 'database'"),
    ],
)
def test_broken_annotations_are_named(broken, edit: Callable, words: str):
    root = broken(edit)
    with pytest.raises(ValueError, match=words):
        build(root)


def test_a_template_without_a_number_and_a_set_without_segments(made: Path, broken):
    with pytest.raises(ValueError, match=r"got 'image_%05d\.jpg'"):
        build(made, frame_template='image_%05d.jpg')
    with pytest.raises(ValueError, match='min_visible must be above 0 and up to 1, got 70'):
        build(made, min_visible=70)
    root = broken(lambda database: [entry.update(annotations=[]) for entry in database.values()])
    with pytest.raises(ValueError, match="no window of 64 frames in subset 'training'"):
        build(root)


def test_missing_things_are_named(made: Path, broken, tmp_path: Path):
    with pytest.raises(ValueError, match="has no subset 'train'; it has 'training', 'validation'"):
        build(made, subset='train')
    with pytest.raises(FileNotFoundError, match='annotation file .*absent.json does not exist'):
        build(made, ann_file='absent.json')
    root = broken(lambda database: None)
    frames = root / 'frames' / 'training_00002'
    (frames / 'image_00040.jpg').unlink()
    with pytest.raises(FileNotFoundError, match='lacks image_00040.jpg: 96 frames are expected'):
        build(root)
    shutil.rmtree(frames)
    with pytest.raises(FileNotFoundError, match='training_00002 is not there: a folder of frames'):
        build(root)
    (root / 'annotations.json').write_text('{')
    with pytest.raises(ValueError, match='is not valid JSON'):
        build(root)


def test_unreadable_frames_are_named(broken):
    root = broken(lambda database: None)
    dataset = build(root, max_refetch=0)
    info = dataset.get_data_info(0)
    file = Path(info['frames_folder']) / 'image_00005.jpg'
    start = info['window'][0]
    file = Path(info['frames_folder']) / f'image_{start + 5:05d}.jpg'
    file.write_bytes(b'')
    with pytest.raises(ValueError, match=f'{file.name} cannot be read; it may be truncated'):
        dataset[0]
