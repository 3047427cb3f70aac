"""docs/tutorial.md from its first command to its last, on a small detector."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from documentation import DOCS, ROOT, blocks

pytest.importorskip('mmdet')
pytest.importorskip('safetensors')
PAGE = DOCS / 'tutorial.md'
PLAIN = ROOT / 'configs' / 'efficient_attention' / 'mask-rcnn_r50_fpn_32xb2-24e_coco.py'


def made_set() -> ModuleType:
    """The module that draws the small COCO set of the tests of training."""
    path = ROOT / 'tests' / 'test_training' / 'conftest.py'
    spec = importlib.util.spec_from_file_location('made_set_of_the_tutorial', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commands() -> list[str]:
    lines = [line for block in blocks(PAGE, '') for line in block.splitlines()]
    return [line for line in lines if line.startswith(('kronattn', 'python'))]


def prepare(folder: Path) -> None:
    """Write what the reader has at the beginning: a config, its weights and data."""
    tools = made_set()
    tools.draw_split(folder / 'data', 'train', 8, seed=0)
    tools.draw_split(folder / 'data', 'val', 4, seed=1)
    (folder / 'my_detector.py').write_text(
        tools.SMALL_CONFIG.format(base=PLAIN, data=folder / 'data', size=tools.SIZE),
        encoding='utf-8',
    )
    from kronattn_mm.cost.config import load_model

    model, _ = load_model(str(folder / 'my_detector.py'), None)
    torch.save(dict(state_dict=model.state_dict()), folder / 'my_detector.pth')
    attended, _ = blocks(PAGE, 'python')
    (folder / 'attended.py').write_text(attended, encoding='utf-8')


def run(command: str, folder: Path) -> str:
    words = command.split()
    if words[0] == 'kronattn':
        words[:1] = [sys.executable, '-m', 'kronattn_mm.cli.command']
    else:
        words[:2] = [sys.executable, str(ROOT / words[1])]
    answer = subprocess.run(
        words,
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
    )
    assert answer.returncode == 0, f'{command}\n{answer.stdout[-2000:]}{answer.stderr[-4000:]}'
    return answer.stdout + answer.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_command_as_it_stands(tmp_path):
    prepare(tmp_path)
    said = {command: run(command, tmp_path) for command in commands()}
    assert len(said) == len(commands()) >= 12
    log = said['python tools/train.py attended.py']
    quoted = ''.join(blocks(PAGE, 'text')).splitlines()
    assert quoted and all(line.strip() in log for line in quoted)
    # The quoted small file, and the round trip.
    file = tmp_path / 'work_dirs' / 'attended' / 'epoch_2_attention.safetensors'
    assert file.is_file() and str(file.relative_to(tmp_path)) in PAGE.read_text(encoding='utf-8')
    plain, stripped, attached, trained = (
        torch.load(tmp_path / name, weights_only=False)['state_dict']
        for name in (
            'my_detector.pth',
            'plain.pth',
            'attached.pth',
            'work_dirs/attended/epoch_2.pth',
        )
    )
    assert plain.keys() == stripped.keys() and attached.keys() == trained.keys()
    assert all(torch.equal(value, stripped[key]) for key, value in plain.items())
    assert all(torch.equal(value, attached[key]) for key, value in trained.items())
    assert any(
        'attention' in key and trained[key].any()
        for key in trained
        if key.endswith('reprojection.weight')
    )


@pytest.mark.slow
def test_the_config_that_loads_the_file(tmp_path):
    from kronattn_mm import save_attention
    from kronattn_mm.cost.config import load_model

    prepare(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        model, _ = load_model('attended.py', None)
        for key, value in model.state_dict().items():
            if 'reprojection' in key:
                value.fill_(0.25)
        save_attention(model, 'attention.safetensors')
        _, loads = blocks(PAGE, 'python')
        (tmp_path / 'loads.py').write_text("_base_ = './my_detector.py'\n" + loads)
        again, _ = load_model('loads.py', None)
    for key, value in model.state_dict().items():
        if 'attention' in key:
            assert torch.equal(again.state_dict()[key], value), key
