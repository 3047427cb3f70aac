"""The configs: they are what they say, and the small ones train and test with the stock runner."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner

from kronattn_mm import inserted_layers
from kronattn_mm.evaluation.temporal_chance import main

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / 'configs' / 'efficient_attention' / 'temporal_localization'
SMALL = 'r-c3d_small_ea-res3-4_action-clips'


def load(name: str) -> Config:
    return Config.fromfile(str(FOLDER / f'{name}.py'))


def small(made: Path, work_dir: Path, **changes) -> Config:
    """The small config on six made clips: two steps of training, one validation."""
    config = load(SMALL)
    for name in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        config[name].dataset.update(data_root=str(made), window=64, step=32)
        config[name].batch_size = 4
    config.merge_from_dict(
        {
            'work_dir': str(work_dir),
            'train_cfg': dict(max_epochs=1, val_interval=1),
            'default_hooks.checkpoint.interval': 1,
            'val_evaluator.out_file': str(work_dir / 'predictions.json'),
            'launcher': 'none',
            **changes,
        }
    )
    return config


def test_two_steps_a_validation_its_pictures_and_a_test(made: Path, tmp_path: Path):
    config = small(made, tmp_path)
    # Twelve windows with an action and more; eight of them are two steps.
    config.train_dataloader.dataset.indices = 8
    runner = Runner.from_cfg(config)
    before = {name: value.clone() for name, value in runner.model.state_dict().items()}
    runner.train()
    after = runner.model.state_dict()
    moved = {name.split('.')[0] for name in after if not torch.equal(before[name], after[name])}
    assert moved == {'backbone', 'proposal_head', 'segment_head'}
    assert after['backbone.attention.res3.reprojection.weight'].any()
    (scalars,) = tmp_path.glob('*/vis_data/scalars.json')
    records = [json.loads(line) for line in scalars.read_text().splitlines()]
    assert {'segments/mAP', 'segments/mAP@0.5'} <= set(records[-1])
    pictures = sorted(path.name for path in tmp_path.glob('*/vis_data/vis_image/*.png'))
    assert pictures == ['val_0_1.png', 'val_1_1.png']  # there are two held-out clips
    results = json.loads((tmp_path / 'predictions.json').read_text())['results']
    assert set(results) == {'validation_00001', 'validation_00002'}

    tested = small(made, tmp_path / 'test', load_from=str(tmp_path / 'epoch_1.pth'))
    tested.train_dataloader.dataset.data_root = str(tmp_path / 'absent')  # a test needs none
    found = Runner.from_cfg(tested).test()
    # The visualizer, one for each process, still writes where the first runner had it.
    assert len(list(tmp_path.glob('**/vis_image/test_?_0.png'))) == 2
    assert found['segments/mAP'] == pytest.approx(records[-1]['segments/mAP'])


@pytest.mark.parametrize('plugged', [False, True])
def test_settings_of_the_paper(plugged: bool):
    config = load('r-c3d_r50_ea-res3-4_thumos14' if plugged else 'r-c3d_r50_thumos14')
    init_default_scope(config.default_scope)
    with torch.device('meta') if not plugged else torch.device('cpu'):
        model = MODELS.build(config.model)
    assert [len(getattr(model.backbone, name)) for name in model.backbone.res_layers] == [
        3,
        4,
        6,
        3,
    ]
    assert model.stride == 8
    assert len(config.classes) == 20
    assert config.train_dataloader.dataset.window // model.stride == 96
    layers = {name: insertion.layer for name, insertion in inserted_layers(model).items()}
    if plugged:
        assert {name: layer.in_channels for name, layer in layers.items()} == {
            'backbone.res3': 1024,
            'backbone.res4': 2048,
        }
        assert {(layer.key_channels, layer.value_channels) for layer in layers.values()} == {
            (64, 64)
        }
    else:
        assert not layers


def test_pairs_of_configs_differ_in_the_attention_alone():
    for name in ('r50_{}thumos14', 'small_{}action-clips'):
        plain, plugged = (
            load('r-c3d_' + name.format(word)).to_dict() for word in ('', 'ea-res3-4_')
        )
        base = plugged['model'].pop('backbone')
        mine = plain['model'].pop('backbone')
        assert base.pop('type') == 'kronattn_mm.Plugged'
        assert base.pop('base') == mine.pop('type')
        (entry,) = base.pop('insert')
        assert entry['at'] == 'res3-4'
        assert base == mine
        plugged.pop('attention')
        assert plugged == plain


def test_a_drawn_timeline_shows_true_and_found(made: Path):
    from kronattn_mm.visualization.timeline import _rows, draw_timeline

    meta = dict(
        video='validation_00001',
        fps=8.0,
        num_frames=96,
        frames_folder=str(made / 'frames' / 'validation_00001'),
        frame_template='image_{:05d}.jpg',
        first_frame=1,
        truth=dict(segments=np.array([[2.0, 6.0]]), labels=np.array([0])),
    )
    found = dict(
        segments=np.array([[2.0, 5.5], [3.0, 9.0], [8.0, 11.0]]),
        scores=np.array([0.9, 0.6, 0.1]),
        labels=np.array([0, 1, 1]),
    )
    classes = ('slide', 'spin')
    picture = draw_timeline(meta, found, classes, 0.2, 6)
    assert picture.dtype == np.uint8
    assert picture.shape[1] == 1200
    # Blue is the first class, orange the second: true and found blue, one orange; the poor
    # prediction is not drawn.
    fewer = draw_timeline(meta, found, classes, 0.8, 6)

    def orange(image: np.ndarray) -> int:
        red, green, blue = image.astype(int).transpose(2, 0, 1)
        return int(((red - blue > 90) & (red > green + 20)).sum())

    assert orange(picture) > orange(fewer) + 1000
    assert _rows(np.array([[0, 5], [4, 8], [6, 9], [8, 9]])) == [0, 1, 0, 1]


def test_chance_is_low_and_labels_alone_matter(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    annotations = made / 'annotations.json'
    database = json.loads(annotations.read_text())['database']
    perfect = {
        name: [
            dict(label=truth['label'], segment=truth['segment'], score=0.9)
            for truth in entry['annotations']
        ]
        for name, entry in database.items()
        if entry['subset'] == 'validation'
    }
    file = tmp_path / 'perfect.json'
    file.write_text(json.dumps(dict(results=perfect)))

    def run(*arguments: object) -> list[list[str]]:
        assert main([str(annotations), *map(str, arguments)]) == 0
        return [line.split() for line in capsys.readouterr().out.splitlines()[1:]]

    rows = run('--draws', 5)
    assert [row[0] for row in rows] == [f'mAP@0.{digit}' for digit in range(1, 8)]
    assert 0 < float(rows[0][1]) < 0.7
    assert float(rows[-1][1]) < 0.2
    assert float(run('--draws', 5, '--predictions', file)[-1][1]) < 0.9  # with its labels: 1
    with pytest.raises(SystemExit) as stop:
        main([str(annotations), '--asked', 'test'])
    assert stop.value.code == 2
    assert "has no subset 'test'; it has 'training', 'validation'" in capsys.readouterr().err


def test_chance_of_files_that_say_nothing(made: Path, tmp_path: Path, capsys):
    content = json.loads((made / 'annotations.json').read_text())
    video = next(name for name, entry in content['database'].items() if 'val' in entry['subset'])
    jump = dict(results={video: [dict(label='jump', segment=[0, 1], score=1)]})
    (tmp_path / 'jump.json').write_text(json.dumps(jump))
    (tmp_path / 'cut.json').write_text('{')
    whole = str(made / 'annotations.json')
    for entry in content['database'].values():
        entry['annotations'] = []
    (tmp_path / 'none.json').write_text(json.dumps(content))
    for arguments, words in (
        ([tmp_path / 'none.json'], "no segment is known in subset 'training'"),
        ([whole, '--predictions', tmp_path / 'jump.json'], "the label 'jump' is not among"),
        ([whole, '--predictions', tmp_path / 'cut.json'], 'cut.json is not valid JSON'),
        ([whole, '--seed', -1], '--seed must be at least 0, got -1'),
    ):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        assert stop.value.code == 2
        assert words in capsys.readouterr().err
