"""DeepLabV2 with each output layer: its configs, one step of each, and trainings by mmseg."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

pytest.importorskip('mmseg')

import mmseg
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

ROOT = Path(__file__).resolve().parents[2]
STOCK = Path(mmseg.__file__).parent / '.mim' / 'tools'
FOLDER = ROOT / 'configs' / 'kronecker_attention' / 'segmentation'
LAYERS = ('aspp', 'regular', 'kao-kv', 'kao-qkv')
PAPER = 'deeplabv2_r101-d8_{}_25k_voc12aug-321x321.py'
SMALL = 'deeplabv2_mobilenet-v2-d16_{}_120_{}-161x161.py'


def load(name: str) -> Config:
    config = Config.fromfile(str(FOLDER / name))
    init_default_scope('mmseg')
    return config


def build(config: Config) -> torch.nn.Module:
    import mmseg.models  # noqa: F401  (registers)

    config.model.backbone.pop('init_cfg', None)  # nothing is downloaded in a test
    torch.manual_seed(0)
    model = MODELS.build(config.model)
    model.init_weights()
    return model


# -- the configs ---------------------------------------------------------------------------------


@pytest.mark.parametrize('path', sorted(FOLDER.rglob('*.py')), ids=lambda path: path.name)
def test_configs_need_no_other_package(path: Path):
    """`mmseg::` bases cannot be resolved by the forks."""
    assert '::' not in path.read_text(encoding='utf-8').replace('`mmseg::`', '')
    Config.fromfile(str(path))


def test_every_layer_has_its_configs():
    names = {path.name for path in FOLDER.glob('*.py')}
    assert names == {PAPER.format(layer) for layer in LAYERS} | {
        SMALL.format(layer, data) for layer in LAYERS for data in ('camvid', 'voc')
    }


@pytest.mark.parametrize('layer', LAYERS)
def test_paper_settings(layer: str):
    config = load(PAPER.format(layer))
    backbone, optimizer = config.model.backbone, config.optim_wrapper.optimizer
    assert (backbone.depth, backbone.strides, backbone.dilations) == (
        101,
        (1, 2, 1, 1),
        (1, 1, 2, 4),
    )
    assert backbone.norm_eval and backbone.init_cfg.checkpoint == 'torchvision://resnet101'
    assert config.train_dataloader.batch_size == 8
    assert config.crop_size == (321, 321) and config.model.data_preprocessor.size == (321, 321)
    assert optimizer == dict(type='SGD', lr=2.5e-4, momentum=0.9, weight_decay=5e-4)
    (schedule,) = config.param_scheduler
    assert (schedule.type, schedule.power, schedule.end, schedule.by_epoch) == (
        'PolyLR',
        0.9,
        25000,
        False,
    )
    assert config.train_cfg.max_iters == 25000
    assert config.model.test_cfg.mode == 'whole'
    assert not any(
        step.type in ('Resize', 'TestTimeAug') for step in config.test_dataloader.dataset.pipeline
    )
    parts = config.train_dataloader.dataset.datasets
    assert [part.ann_file.split('/')[-1] for part in parts] == ['train.txt', 'aug.txt']
    head = config.model.decode_head
    assert head.num_classes == 21
    if layer == 'aspp':
        assert head.type == 'kronattn_mm.DeepLabV2Head' and head.dilations == (6, 12, 18, 24)
    else:
        assert head.attention.transforms == 'qkv'
        assert head.attention.get('mode') == dict(regular=None).get(layer, layer[4:])


@pytest.mark.parametrize('layer', LAYERS)
def test_one_step_at_the_paper_rates(layer: str):
    """Encoder x1, weights of the output layer x10, its biases x20; statistics stay."""
    config = load(PAPER.format(layer))
    # The same network with a shallower encoder, for the time it takes.
    config.merge_from_dict({'model.backbone.depth': 18, 'model.decode_head.in_channels': 512})
    model = build(config)
    model.train()
    wrapper = build_optim_wrapper(model, config.optim_wrapper)
    groups = {id(group['params'][0]): group for group in wrapper.optimizer.param_groups}
    for name, parameter in model.named_parameters():
        group = groups[id(parameter)]
        bias_or_norm = parameter.dim() == 1
        factor = 1
        if name.startswith('decode_head'):
            factor = 20 if name.endswith('.bias') else 10
        assert group['lr'] == pytest.approx(factor * 2.5e-4), name
        assert group['weight_decay'] == (0 if bias_or_norm else 5e-4), name

    before = {name: value.clone() for name, value in model.state_dict().items()}
    label = torch.randint(0, 21, (1, 33, 33))
    label[:, :3] = 255
    data = dict(
        inputs=[torch.randint(0, 256, (3, 33, 33), dtype=torch.uint8)] * 2,
        data_samples=[SegDataSample(gt_sem_seg=PixelData(data=label))] * 2,
    )
    losses = model.train_step(data, wrapper)
    assert torch.isfinite(losses['loss'])
    after = model.state_dict()
    assert all(
        torch.equal(after[name], value)
        for name, value in before.items()
        if name.startswith('backbone') and 'running' in name
    )
    # With an attention of values of zero, queries and keys get no gradient in the first step.
    moved = [
        name for name, value in model.named_parameters() if not torch.equal(value, before[name])
    ]
    assert 'backbone.conv1.weight' in moved
    last = (
        'decode_head.classifiers.3.weight'
        if layer == 'aspp'
        else 'decode_head.attention.values.weight'
    )
    assert last in moved


def test_backbone_has_output_stride_8():
    model = build(load(PAPER.format('aspp'))).eval()
    with torch.no_grad():
        (feature,) = model.backbone(torch.zeros(1, 3, 65, 65))
    assert feature.shape == (1, 2048, 9, 9)


# -- trainings -----------------------------------------------------------------------------------


def run(script: str, *arguments: str | Path, **environment: str | Path) -> str:
    """Run a tool of mmseg as a program of its own; fail with its last words if it does."""
    # One thread: on a busy machine threads wait for each other longer than they compute.
    variables = dict(
        os.environ,
        OMP_NUM_THREADS='1',
        PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')]),
        **{key: str(value) for key, value in environment.items()},
    )
    done = subprocess.run(
        [sys.executable, str(STOCK / script), *map(str, arguments)],
        text=True,
        capture_output=True,
        env=variables,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def options(iterations: int) -> list[str]:
    return [
        '--cfg-options',
        f'train_cfg.max_iters={iterations}',
        f'train_cfg.val_interval={iterations}',
        f'param_scheduler.1.end={iterations}',
        f'default_hooks.checkpoint.interval={iterations}',
        'default_hooks.logger.interval=2',
        'env_cfg.dist_cfg.backend=gloo',
    ]


def losses(work_dir: Path) -> list[float]:
    file = max(work_dir.glob('*/vis_data/scalars.json'))
    lines = map(json.loads, file.read_text(encoding='utf-8').splitlines())
    return [line['loss'] for line in lines if 'loss' in line]


def metrics(output: str) -> tuple[float, float]:
    """Pixel accuracy and mean IoU of the last evaluation, as mmseg prints them."""
    accuracy, iou = re.findall(r'aAcc: ([\d.]+)\s+mIoU: ([\d.]+)', output)[-1]
    return float(accuracy), float(iou)


def check_training(
    config: Path, work_dir: Path, iterations: int, more: list[str], **environment: Path
) -> tuple[float, float]:
    arguments = options(iterations) + more
    output = run('train.py', config, '--work-dir', work_dir, *arguments, **environment)
    values = losses(work_dir)
    third = max(1, len(values) // 3)
    assert np.mean(values[-third:]) < np.mean(values[:third]), values
    trained = metrics(output)

    checkpoint = work_dir / f'iter_{iterations}.pth'
    output = run(
        'test.py',
        config,
        checkpoint,
        '--work-dir',
        work_dir / 'test',
        '--show-dir',
        work_dir / 'pictures',
        *arguments,
        **environment,
    )
    assert metrics(output) == trained
    pictures = list((work_dir / 'pictures').rglob('*.png'))
    assert pictures and len(np.unique(cv2.imread(str(pictures[0])))) > 10
    return trained


@pytest.fixture(scope='session')
def made_voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bright discs (class 1) and boxes (class 2) on dark noise, in the layout of PASCAL VOC."""
    folder = tmp_path_factory.mktemp('made_voc')
    for name in ('JPEGImages', 'SegmentationClass', 'ImageSets/Segmentation'):
        (folder / name).mkdir(parents=True)
    random = np.random.default_rng(0)
    for split, number in (('train', 12), ('val', 4)):
        names = [f'{split}_{index}' for index in range(number)]
        for name in names:
            image = random.integers(0, 40, (96, 96, 3), dtype=np.uint8)
            label = np.zeros((96, 96), np.uint8)
            x, y = (int(value) for value in random.integers(25, 70, 2))
            cv2.circle(image, (x, y), 18, (40, 200, 250), -1)
            cv2.circle(label, (x, y), 18, 1, -1)
            cv2.rectangle(image, (2, y - 18), (22, y + 18), (240, 120, 60), -1)
            cv2.rectangle(label, (2, y - 18), (22, y + 18), 2, -1)
            cv2.imwrite(str(folder / 'JPEGImages' / f'{name}.jpg'), image)
            cv2.imwrite(str(folder / 'SegmentationClass' / f'{name}.png'), label)
        (folder / 'ImageSets' / 'Segmentation' / f'{split}.txt').write_text('\n'.join(names))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize('layer', LAYERS)
def test_training_on_a_made_set(layer: str, made_voc: Path, tmp_path: Path):
    config = FOLDER / SMALL.format(layer, 'voc')
    # From random weights: what is learned in 24 iterations is checked by the loss alone.
    check_training(
        config,
        tmp_path / 'train',
        24,
        [
            'model.data_preprocessor.size=(97,97)',
            'train_dataloader.dataset.pipeline.3.crop_size=(97,97)',
            'train_dataloader.dataset.pipeline.2.scale=(96,96)',
            'model.backbone.norm_eval=False',
            'model.backbone.frozen_stages=-1',
        ],
        KRONATTN_VOC_DATA=made_voc,
    )


@pytest.mark.slow
@pytest.mark.parametrize('data', ['camvid', 'voc'])
@pytest.mark.parametrize('layer', LAYERS)
def test_training_on_photographs(layer: str, data: str, shared: Path, tmp_path: Path):
    checkpoint = shared / 'weights' / 'deeplab_mobilenet_v2_voc_backbone.pth'
    more = [
        'val_dataloader.dataset.indices=8',
        'test_dataloader.dataset.indices=8',
        'model.backbone.init_cfg.type=Pretrained',
        f'model.backbone.init_cfg.checkpoint={checkpoint}',
    ]
    accuracy, iou = check_training(
        FOLDER / SMALL.format(layer, data),
        tmp_path / 'train',
        24,
        more,
        KRONATTN_VOC_DATA=shared / 'data' / 'voc_mini' / 'VOC2007',
        KRONATTN_CAMVID_DATA=shared / 'data' / 'seg_mini',
    )
    assert accuracy > 30 and iou > 1
