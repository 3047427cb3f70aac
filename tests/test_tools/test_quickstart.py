"""The quickstart: data, progress, failures and resuming, the page, and the whole of it."""

import functools
import importlib.util
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip('pycocotools', reason='the quickstart measures with pycocotools')
pytest.importorskip('mmengine', reason='the quickstart trains with mmengine')
from PIL import Image

from kronattn_mm.visualization import report

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / 'tools' / 'quickstart.py'


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


quickstart = load(SCRIPT)
check = load(ROOT / 'tools' / 'dataset_tools' / 'check_coco_folder.py')


# ---------------------------------------------------------------- data that users bring


def make_coco_folder(folder: Path, suffix: str = '', pictures: int = 3) -> Path:
    """Rectangles on grey: a cat on every picture, a dog on every second one."""
    (folder / 'annotations').mkdir(parents=True)
    rng = np.random.default_rng(0)
    for split in ('train', 'val'):
        (folder / f'{split}{suffix}').mkdir()
        images, annotations = [], []
        for number in range(1, pictures + 1):
            name = f'{split}{number}.jpg'
            pixels = rng.integers(100, 156, (48, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f'{split}{suffix}' / name)
            images.append(dict(id=number, file_name=name, width=64, height=48))
            for category in (3, 7)[: 1 + number % 2]:
                x, y, w, h = category, category, 20, 15
                annotations.append(
                    dict(
                        id=len(annotations) + 1,
                        image_id=number,
                        category_id=category,
                        iscrowd=0,
                        area=w * h,
                        bbox=[x, y, w, h],
                        segmentation=[[x, y, x + w, y, x + w, y + h, x, y + h]],
                    )
                )
        (folder / 'annotations' / f'instances_{split}{suffix}.json').write_text(
            json.dumps(
                dict(
                    images=images,
                    annotations=annotations,
                    categories=[dict(id=3, name='cat'), dict(id=7, name='dog')],
                )
            )
        )
    return folder


def edit(folder: Path, split: str, change) -> None:
    file = folder / 'annotations' / f'instances_{split}.json'
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize('suffix', ['', '2017'])
def test_both_layouts_are_found(tmp_path: Path, suffix: str) -> None:
    seen = []
    data = check.check_coco_folder(
        make_coco_folder(tmp_path / 'set', suffix),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert data.classes == ('cat', 'dog')
    assert data.train.images == tmp_path / 'set' / f'train{suffix}'
    assert data.val.annotations.name == f'instances_val{suffix}.json'
    assert seen[-1] == (6, 6)


def break_picture(folder: Path) -> None:
    path = folder / 'val' / 'val2.jpg'
    path.write_bytes(path.read_bytes()[:-300])


BROKEN = {
    'no folder': (lambda f: f.rename(f.with_name('gone')), r'set is not a folder'),
    'no val annotations': (
        lambda f: (f / 'annotations' / 'instances_val.json').unlink(),
        r'lacks .*annotations/instances_val\.json \(expected: annotations/instances_',
    ),
    'no train folder': (lambda f: (f / 'train').rename(f / 'training'), r'lacks .*set/train/ \('),
    'empty file': (
        lambda f: (f / 'annotations' / 'instances_train.json').write_text(''),
        r'instances_train\.json is not a JSON file',
    ),
    'no objects': (
        lambda f: edit(f, 'train', lambda c: c.update(annotations=[])),
        r"instances_train\.json holds no objects \(expected a list 'annotations'",
    ),
    'no classes': (
        lambda f: edit(f, 'val', lambda c: c.pop('categories')),
        r'instances_val\.json holds no classes',
    ),
    'a list': (
        lambda f: (f / 'annotations' / 'instances_val.json').write_text('[1]'),
        r'instances_val\.json holds no pictures',
    ),
    'no width': (
        lambda f: edit(f, 'train', lambda c: c['images'][1].pop('width')),
        r"an entry of 'images' has no 'width': .*train2\.jpg",
    ),
    'no area': (
        lambda f: edit(f, 'val', lambda c: c['annotations'][0].pop('area')),
        r"an entry of 'annotations' has no 'area'",
    ),
    'no mask': (
        lambda f: edit(f, 'train', lambda c: c['annotations'][0].update(segmentation=[])),
        r'object 1 has no mask',
    ),
    'box of text': (
        lambda f: edit(f, 'train', lambda c: c['annotations'][0].update(bbox='abc')),
        r'object 1 has the box "abc" \(expected \[x, y, width, height\]',
    ),
    'box of three': (
        lambda f: edit(f, 'train', lambda c: c['annotations'][0].update(bbox=[1, 2, 3])),
        r'object 1 has the box \[1, 2, 3\]',
    ),
    'negative width': (
        lambda f: edit(f, 'val', lambda c: c['annotations'][0].update(bbox=[1, 2, -3, 4])),
        r'has the box \[1, 2, -3, 4\]',
    ),
    'box of nothing': (
        lambda f: edit(f, 'val', lambda c: c['annotations'][0].update(bbox=[1, 2, 3, math.nan])),
        r'has the box \[1, 2, 3, NaN\]',
    ),
    'mask of text': (
        lambda f: edit(f, 'train', lambda c: c['annotations'][0].update(segmentation='zzz')),
        r'object 1 has the mask "zzz" \(expected polygons',
    ),
    'id twice': (
        lambda f: edit(f, 'train', lambda c: c['images'][1].update(id=c['images'][0]['id'])),
        r"the id 1 stands more than once in 'images'",
    ),
    'height of text': (
        lambda f: edit(f, 'train', lambda c: c['images'][1].update(height='48')),
        r"has the height '48' and the width 64",
    ),
    'unknown class': (
        lambda f: edit(f, 'train', lambda c: c['annotations'][1].update(category_id=9)),
        r'object 2 is of class 9, which is not in the list of classes',
    ),
    'unknown picture': (
        lambda f: edit(f, 'train', lambda c: c['annotations'][1].update(image_id=99)),
        r'object 2 is on picture 99',
    ),
    'missing picture': (
        lambda f: (f / 'train' / 'train3.jpg').unlink(),
        r'train/train3\.jpg is missing',
    ),
    'truncated picture': (break_picture, r'val/val2\.jpg cannot be read, it may be truncated'),
    'no picture at all': (
        lambda f: (f / 'val' / 'val1.jpg').write_text('hello'),
        r'val/val1\.jpg cannot be read',
    ),
    'wrong size': (
        lambda f: edit(f, 'val', lambda c: c['images'][0].update(width=65)),
        r'val1\.jpg is 64 x 48 pixels, its annotation file says 65 x 48',
    ),
    'other order': (
        lambda f: edit(f, 'val', lambda c: c['categories'].reverse()),
        r'list different classes, or in different orders',
    ),
    'class twice': (
        lambda f: [
            edit(f, split, lambda c: c['categories'][1].update(name='cat'))
            for split in ('train', 'val')
        ],
        r"lists class 'cat' more than once",
    ),
}


@pytest.mark.parametrize('name', BROKEN)
def test_broken_folders_are_named(tmp_path: Path, name: str) -> None:
    folder = make_coco_folder(tmp_path / 'set')
    do_break, message = BROKEN[name]
    do_break(folder)
    with pytest.raises(check.DataError, match=message) as error:
        check.check_coco_folder(folder)
    assert str(tmp_path) in str(error.value)


def test_classes_and_number_can_be_chosen(tmp_path: Path) -> None:
    folder = make_coco_folder(tmp_path / 'set', pictures=5)
    data = check.check_coco_folder(folder, only=['dog'])
    assert data.classes == ('dog',)
    assert [one['id'] for one in data.train.content['images']] == [1, 3, 5]
    assert [one['id'] for one in data.val.content['images']] == [1, 2, 3, 4, 5], 'counts in AP'
    assert {one['category_id'] for one in data.train.content['annotations']} == {7}
    data = check.check_coco_folder(folder, max_pictures=2)
    assert [len(split.content['images']) for split in (data.train, data.val)] == [2, 1]
    with pytest.raises(check.DataError, match=r"class 'cow' is not in .*, which has: cat, dog"):
        check.check_coco_folder(folder, only=['cow'])


def test_bad_data_ends_in_one_line(tmp_path: Path) -> None:
    folder = make_coco_folder(tmp_path / 'set')
    break_picture(folder)
    result = subprocess.run(
        [sys.executable, SCRIPT, '--data', folder, '--out', tmp_path / 'out'],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert [line for line in result.stderr.splitlines() if 'error:' in line] == [
        line for line in result.stderr.splitlines() if 'val2.jpg' in line
    ]
    assert 'Traceback' not in result.stderr
    assert not (tmp_path / 'out' / 'index.html').exists()


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['--classes', 'person'], '--classes and --weights go with --data'),
        (['--epochs', '0'], '--epochs must be at least 1, got 0'),
        (['--data', 'x', '--max-pictures', '-1'], '--max-pictures must be 0 or more, got -1'),
        (['--device', 'tpu'], "invalid choice: 'tpu'"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        quickstart.parse_args(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@functools.cache
def backbone_weights() -> dict:
    from mmengine.config import Config
    from mmengine.registry import MODELS, init_default_scope

    init_default_scope('mmdet')
    backbone = MODELS.build(Config.fromfile(str(quickstart.COCO_CONFIG)).model.backbone)
    return {
        name: value
        for name, value in backbone.state_dict().items()
        if not name.startswith('attention.')
    }


def save_backbone(path: Path, **change: object) -> None:
    """Weights that fit the backbone of the config for photographs, with some of them changed."""
    import torch

    weights = backbone_weights() | change
    torch.save(
        dict(state_dict={name: value for name, value in weights.items() if value is not None}), path
    )


def test_weights_are_checked_before_training(tmp_path: Path) -> None:
    import torch

    path = tmp_path / 'weights.pth'
    save_backbone(path)
    quickstart.check_weights(path)
    save_backbone(path, **{'layer3.0.expand_conv.conv.weight': None})
    with pytest.raises(
        quickstart.QuickstartError,
        match=r'weights\.pth does not fit .* 1 of \d+ .*layer3\.0\.expand_conv',
    ):
        quickstart.check_weights(path)
    save_backbone(path, **{'conv1.conv.weight': torch.zeros(8, 3, 3, 3)})
    with pytest.raises(quickstart.QuickstartError, match=r'such as conv1\.conv\.weight'):
        quickstart.check_weights(path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(quickstart.QuickstartError, match=r'weights\.pth cannot be read'):
        quickstart.check_weights(path)
    with pytest.raises(quickstart.QuickstartError, match='gone.pth is not a file'):
        quickstart.check_weights(tmp_path / 'gone.pth')


def test_settings_of_photographs(tmp_path: Path) -> None:
    """The composed config is complete, points at the data by absolute paths, and builds."""
    from mmengine.config import Config

    folder = make_coco_folder(tmp_path / 'set')
    save_backbone(tmp_path / 'weights.pth')
    args = quickstart.parse_args(
        ['--data', str(folder), '--epochs', '7', '--weights', str(tmp_path / 'weights.pth')]
    )
    settings, description = quickstart.photograph_settings(args, tmp_path / 'out')
    assert '3 training pictures with 5 objects' in description
    file = tmp_path / 'config.py'
    file.write_text(quickstart.compose_config(quickstart.COCO_CONFIG, settings))
    config = Config.fromfile(str(file))
    assert config.train_cfg.max_epochs == config.param_scheduler[1].end == 7
    assert config.model.roi_head.mask_head.num_classes == 2
    assert config.model.backbone.init_cfg.checkpoint == str(tmp_path / 'weights.pth')
    for loader in (config.train_dataloader, config.val_dataloader, config.test_dataloader):
        assert loader.dataset.metainfo.classes == ('cat', 'dog')
        assert Path(loader.dataset.ann_file).is_file()
        assert Path(loader.dataset.data_prefix.img).is_dir()


@pytest.mark.parametrize(
    'name, layers',
    [
        (quickstart.DIGITS_CONFIG, ['backbone.res3', 'backbone.res4']),
        (quickstart.COCO_CONFIG, ['backbone.layer5', 'backbone.layer7']),
    ],
)
def test_attention_is_where_the_name_says(name: Path, layers: list[str]) -> None:
    from mmengine.config import Config
    from mmengine.registry import MODELS, init_default_scope

    from kronattn_mm import inserted_layers

    init_default_scope('mmdet')
    model = MODELS.build(Config.fromfile(str(name)).model)
    assert list(inserted_layers(model)) == [*layers, *(f'neck.fpn{level}' for level in range(1, 6))]


def test_shown_lines_are_what_the_config_does() -> None:
    from mmengine.config import Config

    config = Config.fromfile(str(quickstart.COCO_CONFIG))
    shown = {}
    exec(quickstart.insertion_lines(config), shown)
    for part in ('backbone', 'neck'):
        assert shown['model'][part]['insert'] == config.model[part].insert
        assert shown['model'][part]['base'] == config.model[part].base


def test_learning_rate_of_pretrained_stages_leaves_attention_alone() -> None:
    """The keys name the stages; they must not be substrings of the inserted layers' names."""
    keys = [f'backbone.layer{stage}.' for stage in range(1, 8)]
    names = ['backbone.attention.layer5.keys.weight', 'neck.attention.fpn1.keys.weight']
    assert not any(key in name for key in keys for name in names)


# ---------------------------------------------------------------- progress and failures


class Lines:
    def __init__(self) -> None:
        self.shown, self.notes = [], []

    def show(self, *arguments: object) -> None:
        self.shown.append(arguments)

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_progress_reads_what_mmengine_prints() -> None:
    lines = Lines()
    take = quickstart.follow_training(lines, epochs=8)
    stamp = '11/29 13:59:31 - mmengine - INFO - '
    take(
        f'{stamp}Epoch(train)  [6][ 60/120]  lr: 3.5457e-04  eta: 0:06:12  time: 5.1319  '
        'data_time: 0.0771  grad_norm: 4.8192  loss: 1.4835  loss_rpn_cls: 0.0264'
    )
    take(
        f'{stamp}Epoch(train)  [7][  5/120]  lr: 3e-04  eta: 1 day, 0:06:12  time: 5.1  '
        'data_time: 0.0771  loss: 1.2  loss_rpn_cls: 0.0264'
    )
    take(
        f'{stamp}Epoch(val) [6][10/10]    coco/bbox_mAP: 0.5170  coco/bbox_mAP_50: 0.7910  '
        'coco/segm_mAP: 0.4  coco/segm_mAP_50: 0.7650  data_time: 0.1  time: 2.2'
    )
    take(f'{stamp}Epoch(val) [6][ 5/10]    eta: 0:00:03')
    take('something else')
    assert lines.shown == [
        (660, 960, 'epoch 6 of 8, loss 1.48, 0:06:12 left'),
        (725, 960, 'epoch 7 of 8, loss 1.20, 1 day, 0:06:12 left'),
    ]
    assert lines.notes == [
        'epoch  6 of 8: box AP50 0.7910, mask AP50 0.7650 on the held-out pictures'
    ]


def test_progress_writes_plain_lines_where_nobody_watches(capsys, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(quickstart.time, 'monotonic', lambda: now[0])
    with quickstart.Progress('work', 30) as progress:
        for second in range(31):
            now[0] = float(second)
            progress.show(second)
    out = capsys.readouterr().out
    assert out.splitlines() == ['work: 11 of 30', 'work: 22 of 30']
    assert '\x1b' not in out and '\r' not in out


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / 'script.py'
    path.write_text(text)
    return path


def test_a_failing_program_is_named_with_its_last_line_and_log(tmp_path: Path) -> None:
    runner = quickstart.Runner(tmp_path / 'logs', 'cpu')
    with pytest.raises(quickstart.QuickstartError) as error:
        runner.run('cooking', [script(tmp_path, 'print("begun")\nraise RuntimeError("no salt")')])
    log = tmp_path / 'logs' / 'cooking.log'
    assert str(error.value) == (
        f'cooking failed (exit code 1): RuntimeError: no salt -- the whole output is in {log}'
    )
    assert 'begun' in log.read_text() and 'Traceback' in log.read_text()


def test_a_program_gets_its_device_and_gives_its_lines(tmp_path: Path) -> None:
    lines = []
    path = script(
        tmp_path,
        'import os, sys\nprint(os.environ["CUDA_VISIBLE_DEVICES"] == "")\n'
        'print("noise", file=sys.stderr)\nprint(sys.argv[1])',
    )
    out = quickstart.Runner(tmp_path / 'logs', 'cpu').run('test', [path, 'a b'], lines.append)
    assert out == 'True\na b\n' and lines == ['True\n', 'a b\n']


def test_an_interrupted_program_does_not_stay(tmp_path: Path) -> None:
    path = script(tmp_path, 'import os, time\nprint(os.getpid())\ntime.sleep(60)')
    pids = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quickstart.Runner(tmp_path / 'logs', 'cpu').run('test', [path], interrupt)
    assert not Path(f'/proc/{pids[0]}').exists()


FAKE_TRAIN = """
import os, sys, torch
work_dir = sys.argv[sys.argv.index('--work-dir') + 1]
first = int(sys.argv[-1].split('epoch_')[1][:-4]) if '--resume' in sys.argv else 0
os.makedirs(work_dir, exist_ok=True)
for epoch in range(first + 1, 4):
    torch.save(dict(epoch=epoch), f'{work_dir}/epoch_{epoch}.pth')
    print('trained', epoch, flush=True)
    if os.environ.get('STOP_AFTER') == str(epoch):
        sys.exit('power cut')
"""


@pytest.fixture
def fake_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """train() on a program that only leaves checkpoints; returns the log and what was said."""
    path = script(tmp_path, FAKE_TRAIN)
    monkeypatch.setattr(quickstart, 'mmdet_tool', lambda name: path)
    said = []
    monkeypatch.setattr(quickstart, 'say', said.append)
    training = tmp_path / 'training'

    def call() -> tuple[str, list[str]]:
        said.clear()
        (tmp_path / 'logs' / 'training.log').unlink(missing_ok=True)
        checkpoint, seconds = quickstart.train(
            quickstart.Runner(tmp_path / 'logs', 'cpu'), tmp_path / 'config.py', training, 3
        )
        assert checkpoint == training / 'epoch_3.pth' and seconds > 0
        log = tmp_path / 'logs' / 'training.log'
        return log.read_text() if log.is_file() else '', list(said)

    call.training = training
    return call


def test_training_goes_on_where_it_stopped(fake_train, monkeypatch) -> None:
    monkeypatch.setenv('STOP_AFTER', '1')
    with pytest.raises(quickstart.QuickstartError, match='training failed'):
        fake_train()
    monkeypatch.delenv('STOP_AFTER')
    log, said = fake_train()
    assert log == 'trained 2\ntrained 3\n'
    assert said == ['Going on after epoch_1.pth, where the last run was interrupted.']
    log, said = fake_train()
    assert log == '' and said[0].startswith('Already trained: ')


def test_half_a_checkpoint_is_passed_over(fake_train, monkeypatch) -> None:
    monkeypatch.setenv('STOP_AFTER', '2')
    with pytest.raises(quickstart.QuickstartError):
        fake_train()
    monkeypatch.delenv('STOP_AFTER')
    half = fake_train.training / 'epoch_2.pth'
    half.write_bytes(half.read_bytes()[:100])
    log, said = fake_train()
    assert log == 'trained 2\ntrained 3\n'
    assert 'epoch_2.pth cannot be read' in said[0] and 'Going on after epoch_1.pth' in said[1]


def test_training_without_a_checkpoint_starts_again(fake_train) -> None:
    fake_train.training.mkdir()
    (fake_train.training / 'rubbish').touch()
    log, said = fake_train()
    assert log == 'trained 1\ntrained 2\ntrained 3\n'
    assert 'starting again' in said[0] and not (fake_train.training / 'rubbish').exists()


def test_a_run_with_other_settings_is_kept(tmp_path: Path) -> None:
    (tmp_path / 'config.py').write_text('old = 1')
    (tmp_path / 'training').mkdir()
    (tmp_path / 'training' / 'epoch_1.pth').touch()
    (tmp_path / 'my notes.txt').touch()
    quickstart.keep_earlier(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['earlier', 'my notes.txt']
    (kept,) = (tmp_path / 'earlier').iterdir()
    assert (kept / 'config.py').read_text() == 'old = 1'
    assert (kept / 'training' / 'epoch_1.pth').exists()


# ---------------------------------------------------------------- curves, pictures, page


def scalars(folder: Path, records: list[dict], tail: str = '') -> None:
    (folder / 'vis_data').mkdir(parents=True)
    text = '\n'.join(map(json.dumps, records))
    (folder / 'vis_data' / 'scalars.json').write_text(text + '\n' + tail)


def test_logs_of_a_resumed_run_are_joined(tmp_path: Path) -> None:
    def record(step: int, loss: float) -> dict:
        return dict(loss=loss, loss_cls=loss / 2, epoch=1 + (step - 1) // 2, iter=step, step=step)

    scalars(
        tmp_path / '20260101_000000',
        [record(1, 5.0), record(2, 4.0), record(3, 9.0)],
        tail='{"loss": 1.',
    )
    scalars(
        tmp_path / '20260102_000000',
        [record(3, 3.0), record(4, 2.0), {'coco/bbox_mAP': 0.5, 'step': 2}],
    )
    training, validation = report.read_scalars(tmp_path)
    assert [one['loss'] for one in training] == [5, 4, 3, 2]
    assert validation == [{'coco/bbox_mAP': 0.5, 'step': 2}]
    report.draw_loss(training, tmp_path / 'loss.png')
    report.draw_precision(validation, tmp_path / 'ap.png')
    for name in ('loss.png', 'ap.png'):
        pixels = np.asarray(Image.open(tmp_path / name).convert('RGB')).astype(int)
        blue = (abs(pixels - [11, 83, 148]).sum(-1) < 30).sum()
        assert blue > 20, f'no line on {name}'
    with pytest.raises(FileNotFoundError, match='holds no .*scalars.json'):
        report.read_scalars(tmp_path / 'nothing')


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    report.write_text(tmp_path / 'page.html', 'old')
    with pytest.raises(RuntimeError), report.replacing(tmp_path / 'page.html') as draft:
        draft.write_text('half')
        raise RuntimeError
    assert (tmp_path / 'page.html').read_text() == 'old'
    assert len(list(tmp_path.iterdir())) == 1


def prediction(coco_folder: Path, number: int, masks: np.ndarray, scores: list[float]) -> dict:
    import torch
    from pycocotools import mask as run_lengths

    return dict(
        img_id=number,
        img_path=str(coco_folder / 'val' / f'val{number}.jpg'),
        pred_instances=dict(
            labels=torch.zeros(len(masks), dtype=torch.long),
            scores=torch.tensor(scores),
            bboxes=torch.tensor([[30.0, 20.0, 50.0, 40.0]] * len(masks)).reshape(-1, 4),
            masks=[run_lengths.encode(np.asfortranarray(one)) for one in masks],
        ),
    )


def test_predictions_are_drawn_beside_ground_truth(tmp_path: Path) -> None:
    folder = make_coco_folder(tmp_path / 'set')
    file = folder / 'annotations' / 'instances_val.json'
    mask = np.zeros((48, 64), np.uint8)
    mask[20:40, 30:50] = 1
    found, weak = (prediction(folder, 1, mask[None], [score]) for score in (0.9, 0.4))
    none = prediction(folder, 1, mask[:0], [])
    pictures = []
    for number, one in enumerate((found, weak, none)):
        (path,) = report.draw_predictions([one], file, ['cat', 'dog'], tmp_path / str(number))
        pictures.append(np.asarray(Image.open(path)).astype(int))
    assert pictures[0].shape == (360, 968, 3)  # twice 64 x 48 at 480 pixels, and a gap
    assert np.array_equal(pictures[1], pictures[2]), 'a weak prediction was drawn'
    for one in pictures[1:]:
        assert np.array_equal(pictures[0][:, :480], one[:, :480]), 'ground truth differs'
    changed = abs(pictures[0] - pictures[2])[:, 488:].sum(-1) > 40
    rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
    assert abs(rows[0] - 150) < 8 and abs(rows[-1] - 300) < 8
    assert abs(columns[0] - 225) < 8 and abs(columns[-1] - 375) < 12
    assert changed[160:290, 235:365].mean() > 0.9


def test_objects_on_the_border_do_not_move_the_picture(tmp_path: Path) -> None:
    folder = make_coco_folder(tmp_path / 'set')

    def to_the_border(content: dict) -> None:
        for entry in content['annotations']:
            entry['bbox'] = [0, 0, 64, 48]
            entry['segmentation'] = [[0, 44, 64, 44, 64, 48, 0, 48]]

    edit(folder, 'val', to_the_border)
    mask = np.zeros((0, 48, 64), np.uint8)
    (path,) = report.draw_predictions(
        [prediction(folder, 1, mask, [])],
        folder / 'annotations' / 'instances_val.json',
        ['cat', 'dog'],
        tmp_path / 'out',
    )
    halves = np.asarray(Image.open(path)).astype(int)
    left, right = halves[:, :480], halves[:, 488:]
    inside = np.s_[60:300, 20:400]  # without masks, boxes and labels
    assert abs(left[inside] - right[inside]).max() <= 2


def test_pictures_are_spread_and_not_picked_by_score(tmp_path: Path) -> None:
    folder = make_coco_folder(tmp_path / 'set', pictures=9)
    file = folder / 'annotations' / 'instances_val.json'  # odd numbers have two objects
    predictions = [dict(img_id=number) for number in range(1, 10)]
    chosen = report.choose_pictures(predictions, file, 3)
    assert [one['img_id'] for one in chosen] == [1, 5, 9]
    assert len(report.choose_pictures(predictions, file, 7)) == 7
    assert len(report.choose_pictures(predictions, file, 20)) == 9


def test_weak_predictions_are_drawn_where_there_are_no_others() -> None:
    def predictions(*scores: list[float]) -> list[dict]:
        return [dict(pred_instances=dict(scores=np.array(one))) for one in scores]

    assert report.choose_score(predictions([0.6, 0.2], [0.1]), 0.5, fewest=2) == 0.5
    assert report.choose_score(predictions([0.4, 0.2], [0.3]), 0.5, fewest=2) == 0.3
    assert report.choose_score(predictions([0.4], []), 0.5, fewest=2) == 0.4
    assert report.choose_score(predictions([], []), 0.5, fewest=2) == 0.5


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.open, self.text = [], [], ''
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ('meta', 'img', 'link', 'br'):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f'</{tag}> closes something else'

    def handle_data(self, data: str) -> None:
        self.text += data


def page_content(tmp_path: Path) -> dict:
    Image.new('RGB', (4, 3), 'red').save(tmp_path / 'one.png')
    picture = tmp_path / 'one.png'
    return dict(
        title='A <title>',
        summary='what it is',
        figures=[('box AP50', '0.87')],
        figures_note='By test.py.',
        predictions_note='Some.',
        predictions=[picture],
        attention=[('neck.fpn1', [picture])],
        curves=[(picture, 'Loss')],
        cost='layer  | 12 M',
        cost_command='cost.py config.py',
        environment=[('Versions', 'torch 2')],
        commands=['python a.py', 'python b.py'],
        config_name='config',
        config_source='x = "<y>"',
        config_full='z = 1',
        insertion="at='res3'",
    )


def test_page_stands_alone(tmp_path: Path) -> None:
    report.write_page(tmp_path / 'index.html', **page_content(tmp_path))
    text = (tmp_path / 'index.html').read_text(encoding='utf-8')
    page = Page(text)
    assert page.open == []
    images = [attributes for tag, attributes in page.tags if tag == 'img']
    assert len(images) == 3
    assert all(one['src'].startswith('data:image/png;base64,') and one['alt'] for one in images)
    assert not [tag for tag, _ in page.tags if tag in ('script', 'link', 'iframe')]
    assert not re.search(r'(?:src|href)="(?!data:)|url\(|@import', text)
    assert 'prefers-color-scheme: dark' in text and 'width=device-width' in text
    for part in (
        'A <title>',
        'box AP50',
        '0.87',
        'layer  | 12 M',
        'torch 2',
        'python b.py',
        'x = "<y>"',
        'z = 1',
        "at='res3'",
    ):
        assert part in page.text


def test_page_with_something_missing_is_not_written(tmp_path: Path) -> None:
    import jinja2

    content = page_content(tmp_path)
    (tmp_path / 'index.html').write_text('old')
    del content['cost']
    with pytest.raises(jinja2.UndefinedError, match='cost'):
        report.write_page(tmp_path / 'index.html', **content)
    with pytest.raises(FileNotFoundError):
        report.write_page(
            tmp_path / 'index.html',
            **{**page_content(tmp_path), 'predictions': [tmp_path / 'gone.png']},
        )
    assert (tmp_path / 'index.html').read_text() == 'old'


# ---------------------------------------------------------------- the whole of it


def run_quickstart(*arguments: object) -> subprocess.CompletedProcess:
    result = subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def check_results(out: Path, layers: list[str]) -> dict:
    """Everything that the page promises is there; returns the final metrics."""
    page = Page((out / 'index.html').read_text(encoding='utf-8'))
    images = [attributes for tag, attributes in page.tags if tag == 'img']
    files = [
        file
        for room in ('predictions', 'attention', 'curves')
        for file in (out / room).glob('*.png')
    ]
    assert len(files) == len(images) == 6 + 2 * 2 + 2
    for file in files:
        Image.open(file).load()
    assert all(name in (out / 'cost.txt').read_text() for name in layers)
    assert not [path for path in out.rglob('.*') if path.is_file()], 'drafts were left behind'
    metrics = sorted(out.glob('evaluation/*/*.json'))[-1]
    return json.loads(metrics.read_text())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_digits_are_learned(tmp_path: Path) -> None:
    run_quickstart('--out', tmp_path / 'out')
    metrics = check_results(tmp_path / 'out', ['backbone.res3', 'neck.fpn5'])
    assert metrics['coco/bbox_mAP_50'] >= 0.7
    assert metrics['coco/segm_mAP_50'] >= 0.7
    again = run_quickstart('--out', tmp_path / 'out')
    assert 'are there already' in again.stdout and 'Already trained' in again.stdout
    repeated = check_results(tmp_path / 'out', ['backbone.res3', 'neck.fpn5'])
    assert repeated['coco/bbox_mAP'] == metrics['coco/bbox_mAP']


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_real_photographs(tmp_path: Path, shared: Path) -> None:
    run_quickstart(
        '--data',
        shared / 'data' / 'coco_mini',
        '--out',
        tmp_path / 'out',
        '--epochs',
        2,
        '--classes',
        'person',
        '--weights',
        shared / 'weights' / 'mobilenet_v2_1.0_imagenet_mmdet.pth',
    )
    metrics = check_results(tmp_path / 'out', ['backbone.layer5', 'backbone.layer7', 'neck.fpn1'])
    assert 0 <= metrics['coco/bbox_mAP_50'] <= 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_made_photographs(tmp_path: Path) -> None:
    """The same on made pictures, for machines without the real ones; all pictures, no weights."""
    folder = make_coco_folder(tmp_path / 'set', '2017', pictures=12)
    out = tmp_path / 'out'
    run_quickstart('--data', folder, '--out', out, '--epochs', 1)
    check_results(out, ['backbone.layer5', 'neck.fpn5'])
