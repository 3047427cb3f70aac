"""The study of attended convolutions: what is compared, how it is judged, and that it resumes."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

pytest.importorskip('mmpretrain')

from kronattn_mm.studies import Arm, Recipe, Run, StudyError, expand_arms, prepare_data, summarize
from kronattn_mm.studies.arms import VARIANTS
from kronattn_mm.studies.claims import CLAIMS, verdicts
from kronattn_mm.studies.runs import run_config
from kronattn_mm.studies.summary import write_summary

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / 'tools' / 'studies' / 'attended_convs.py'
CONFIGS = ROOT / 'configs' / 'shift_and_balance' / 'classification' / 'cifar10'


def make_pictures(folder: Path, classes: int = 10, train: int = 13, test: int = 3) -> Path:
    """Write plain noise around a colour for each class."""
    generator = np.random.default_rng(0)
    for split, count in (('train', train), ('test', test)):
        for label in range(classes):
            place = folder / split / f'class{label}'
            place.mkdir(parents=True)
            colour = np.array([25 * label, 255 - 25 * label, 128])
            for number in range(count):
                noise = generator.normal(colour, 20, (32, 32, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(noise).save(place / f'{number}.png')
    return folder


def made_result(arm: str, seed: int, accuracy: float, width: float = 0.35) -> dict:
    gates = (
        dict(
            lambda_mean=0.1,
            lambda_std=0.02,
            saturated=0.01,
            attention_below=0.02,
            trunk_below=0.0,
            both_below=0.0,
        )
        if arm != 'static'
        else {}
    )
    history = [dict(epoch=epoch, accuracy=accuracy * epoch / 2, **gates) for epoch in (1, 2)]
    return dict(
        run=f'{arm}{seed}',
        variant=arm,
        arm=arm,
        options={},
        width=width,
        seed=seed,
        epochs=2,
        params=1000,
        accuracy=accuracy,
        history=history,
        seconds=1.0,
    )


def test_arms():
    arms = expand_arms(
        ['static', 'se-3', 'sb-3'],
        dict(lambda_init=[0.05, 1.0], gate=[None], hidden_ratio=[3.0], dropout=[], place=[]),
    )
    assert [arm.name for arm in arms] == [
        'static',
        'se-3 gate=none hidden_ratio=3',
        'sb-3 lambda_init=0.05 gate=none hidden_ratio=3',
        'sb-3 lambda_init=1 gate=none hidden_ratio=3',
    ]
    assert arms[2].layer_arguments() == dict(
        lambda_init=0.05, gate=None, hidden_ratio=3.0, depthwise_hidden_ratio=0.5
    )
    with pytest.raises(ValueError, match="unknown variant 'sb-4'; there are static, se-block"):
        expand_arms(['sb-4'], {})
    with pytest.raises(ValueError, match='lambda_init is an argument of none of static, se-1'):
        expand_arms(['static', 'se-1'], dict(lambda_init=[0.1]))


def test_every_claim_can_be_tested():
    """The names in the claims are names that the tool gives its networks."""
    values = dict(
        lambda_init=[0.01, 0.05, 0.1, 0.5, 1.0],
        hidden_ratio=[1.0, 2.0, 3.0, 4.0],
        dropout=[0.2],
        gate=['tanh', 'sigmoid', 'softmax', 'relu', None],
    )
    names = {arm.name for arm in expand_arms(VARIANTS, {})}
    for option, choices in values.items():
        names |= {arm.name for arm in expand_arms(['sb-3'], {option: choices})}
    names |= {arm.name for arm in expand_arms(['se-3'], dict(gate=values['gate']))}
    assert {name for claim in CLAIMS for name in (claim.better, claim.worse)} <= names


def test_verdicts():
    found = {
        (verdict.claim.better, verdict.claim.worse): verdict
        for verdict in verdicts(
            {
                (0.35, 'static'): [70.0, 70.2, 69.8],
                (0.35, 'sb-3'): [72.0, 72.2, 71.8],
                (0.35, 'dyconv'): [74.0, 74.2, 73.8],
                (0.35, 'se-3'): [71.9, 72.6, 71.2],
                (0.35, 'se-1'): [60.0],
            }
        )
    }
    assert set(found) == {
        ('sb-3', 'static'),
        ('sb-3', 'dyconv'),
        ('sb-3', 'se-3'),
        ('se-1', 'se-3'),
    }
    assert found['sb-3', 'static'].text == 'agrees'
    assert found['sb-3', 'static'].difference == pytest.approx(2)
    assert found['sb-3', 'static'].error == pytest.approx((2 * 0.04 / 3) ** 0.5)
    assert found['sb-3', 'dyconv'].text == 'disagrees'
    assert found['sb-3', 'se-3'].text == 'seeds do not tell'
    assert found['se-1', 'se-3'].text == 'one seed: not told'
    # Said of the wider networks only.
    wide = verdicts({(1.0, 'se-1'): [90.0, 91.0], (1.0, 'sb-3'): [80.0, 81.0]})
    assert [(verdict.claim.better, verdict.text) for verdict in wide] == [('se-1', 'agrees')]


def test_summary_files(tmp_path: Path):
    results = [
        made_result('static', 0, 70.0),
        made_result('sb-3', 0, 72.0),
        made_result('static', 1, 71.0),
        made_result('sb-3', 1, 74.0),
    ]
    rows = summarize(results)
    assert [(row['arm'], row['seeds'], row['mean']) for row in rows] == [
        ('static', [0, 1], 70.5),
        ('sb-3', [0, 1], 73.0),
    ]
    assert rows[1]['std'] == pytest.approx(2**0.5)
    write_summary(tmp_path, results, 'the command')
    page = (tmp_path / 'results.md').read_text()
    assert (
        '| x0.35 | sb-3 | 1,000 | 2 | 73.00 ± 1.41 | 0.100, 0.020 | 1.00% | 2.00% | 0.00% |' in page
    )
    assert '| table 6 | x0.35 | sb-3 | static | +2.50 | 1.12 | agrees |' in page
    assert '`the command`' in page
    data = json.loads((tmp_path / 'results.json').read_text())
    assert data['runs'] == results
    assert (
        (tmp_path / 'results.csv')
        .read_text()
        .splitlines()[1]
        .startswith('0.35,static,0,2,1000,70.0,1.0,')
    )
    for name in ('accuracy', 'lambda', 'saturation'):
        picture = Image.open(tmp_path / f'{name}.png')
        assert len(np.unique(np.asarray(picture))) > 50  # something is drawn


def test_config_of_a_run(tmp_path: Path):
    data = prepare_data(make_pictures(tmp_path / 'data', 3, 1, 1), tmp_path / 'none', None)
    recipe = Recipe(CONFIGS, data, 7, {'optim_wrapper.optimizer.lr': 0.05})
    arm = Arm('sb-2', (('lambda_init', 0.5), ('dropout', 0.2)))
    config = run_config(recipe, Run(arm, 0.5, 3), tmp_path / 'run')
    assert config.model.backbone.widen_factor == 0.5
    assert config.model.backbone.convs[0].layer == dict(
        type='kronattn_mm.ShiftBalanceConv2d', lambda_init=0.5, dropout=0.2
    )
    assert config.train_cfg.max_epochs == config.param_scheduler[0].T_max == 7
    assert config.randomness.seed == 3
    assert config.optim_wrapper.optimizer.lr == 0.05
    assert config.model.head.num_classes == config.data_preprocessor.num_classes == 3
    names = [transform.type for transform in config.train_dataloader.dataset.pipeline]
    assert names == ['LoadImageFromFile', 'Resize', 'RandomCrop', 'RandomFlip', 'PackInputs']
    assert config.data_preprocessor.to_rgb  # OpenCV reads files as BGR


def test_data_that_is_none(tmp_path: Path):
    with pytest.raises(StudyError, match='is no CIFAR-10 folder'):
        prepare_data(tmp_path, tmp_path / 'x', None)
    make_pictures(tmp_path, 3, 1, 1)
    (tmp_path / 'test' / 'class1').rename(tmp_path / 'test' / 'other')
    with pytest.raises(StudyError, match='differ: class1, other'):
        prepare_data(tmp_path, tmp_path / 'x', None)
    cifar = tmp_path / 'cifar'
    (cifar / 'cifar-10-batches-py').mkdir(parents=True)
    assert prepare_data(cifar, tmp_path / 'x', None)['dataset']['data_root'] == str(cifar)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f'studies_{name}', TOOL.with_name(f'{name}.py'))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--data', 'nowhere'], 'nowhere is no CIFAR-10 folder'),
        (
            ['--data', 'nowhere', '--variants', 'static', '--gate', 'relu'],
            'gate is an argument of none of static',
        ),
    ],
)
def test_one_clear_sentence(tmp_path: Path, capfd, arguments: list[str], message: str):
    assert load('attended_convs').main([*arguments, '--out', str(tmp_path / 'out')]) == 1
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_gates_of_what_was_not_trained(tmp_path: Path, capfd):
    tool = load('gate_saturation')
    assert tool.main([str(tmp_path)]) == 1
    assert 'holds no config files' in capfd.readouterr().err
    (tmp_path / 'config.py').write_text('model = None', encoding='utf-8')
    assert tool.main([str(tmp_path)]) == 1
    assert 'has no last_checkpoint; nothing was trained there' in capfd.readouterr().err
    with pytest.raises(SystemExit) as stop:
        tool.main([str(tmp_path), '--png', 'chart.jpg'])
    assert stop.value.code == 2


def call(out: Path, data: Path, *more: str) -> list[str]:
    return [
        sys.executable,
        str(TOOL),
        '--data',
        str(data),
        '--out',
        str(out),
        '--widths',
        '0.1',
        '--variants',
        'static',
        'sb-1',
        '--epochs',
        '2',
        '--seeds',
        '0',
        *more,
    ]


@pytest.mark.slow
def test_study_resumes_after_a_kill(tmp_path: Path):
    data = make_pictures(tmp_path / 'data')
    whole = subprocess.run(call(tmp_path / 'whole', data), capture_output=True, text=True)
    assert whole.returncode == 0, whole.stderr
    assert '2/2 x0.1_sb-1_seed0' in whole.stderr
    expected = json.loads((tmp_path / 'whole' / 'results.json').read_text())['runs']

    # Killed as soon as the second network has its first checkpoint.
    out = tmp_path / 'broken'
    process = subprocess.Popen(call(out, data), stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    checkpoint = out / 'runs' / 'x0.1_sb-1_seed0' / 'last_checkpoint'
    deadline = time.monotonic() + 300
    while not checkpoint.is_file() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert checkpoint.is_file()
    assert not (out / 'runs' / 'x0.1_sb-1_seed0' / 'result.json').exists()
    first = out / 'runs' / 'x0.1_static_seed0' / 'result.json'
    written = first.stat().st_mtime_ns
    again = subprocess.run(call(out, data), capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert first.stat().st_mtime_ns == written  # finished runs are left alone
    results = json.loads((out / 'results.json').read_text())['runs']
    assert [run['accuracy'] for run in results] == [run['accuracy'] for run in expected]
    assert results[1]['history'][-1] == expected[1]['history'][-1]

    other = subprocess.run(
        call(out, data, '--cfg-options', 'optim_wrapper.optimizer.lr=0.01'),
        capture_output=True,
        text=True,
    )
    assert other.returncode == 1
    assert 'was trained with another optim_wrapper' in other.stderr
    assert 'Traceback' not in other.stderr

    # The layers' own view of the trained network.
    gates = subprocess.run(
        [
            sys.executable,
            str(TOOL.with_name('gate_saturation.py')),
            str(out / 'runs' / 'x0.1_sb-1_seed0'),
            '--json',
            '--png',
            str(tmp_path / 'gates.png'),
        ],
        capture_output=True,
        text=True,
        env=dict(os.environ, CUDA_VISIBLE_DEVICES=''),
    )
    assert gates.returncode == 0, gates.stderr
    measured = json.loads(gates.stdout)['x0.1_sb-1_seed0']
    assert len(measured['layers']) == 16
    assert measured['below']['trunk'] == 0
    assert len(measured['layers'][0]['lambdas']) == 48
    # All 30 pictures fit into the batches that both measure.
    assert measured['below']['attention'] == pytest.approx(
        results[1]['history'][-1]['attention_below']
    )
    assert Image.open(tmp_path / 'gates.png').size[0] > 500
    static = subprocess.run(
        [
            sys.executable,
            str(TOOL.with_name('gate_saturation.py')),
            str(out / 'runs' / 'x0.1_static_seed0'),
        ],
        capture_output=True,
        text=True,
    )
    assert static.returncode == 1
    assert 'has no layer with a gate' in static.stderr
