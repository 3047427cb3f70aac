"""Every command of the pages is run by a test, or tests/page_commands.py says why not."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documentation import ROOT, command_pages, name, shell_lines
from page_commands import COMMANDS, PAGES, STANDING_FOR, Elsewhere, NotHere, Run

FOUND = {
    line: name(page)
    for page in command_pages()
    if name(page) not in PAGES
    for line in shell_lines(page)
}


def test_every_command_has_its_line():
    missing = [f'{page}: {line}' for line, page in FOUND.items() if line not in COMMANDS]
    assert not missing, 'enter them in tests/page_commands.py:\n' + '\n'.join(missing)


def test_no_line_is_left_over():
    """What stands in no page any more would be a test of nothing."""
    whole = {line for page in command_pages() for line in shell_lines(page)}
    assert not [line for line in COMMANDS if line not in whole]
    assert set(PAGES) <= {name(page) for page in command_pages()}


@pytest.mark.parametrize(
    'test',
    sorted({how.test for how in (*COMMANDS.values(), *PAGES.values()) if type(how) is Elsewhere}),
)
def test_tests_that_are_named_exist(test):
    file, _, function = test.partition('::')
    assert re.search(rf'^ *def {function}\(', (ROOT / file).read_text(encoding='utf-8'), re.M)


def test_reasons_are_said():
    assert all(len(how.reason) > 10 for how in COMMANDS.values() if isinstance(how, NotHere))


def shell(command: str, folder: Path) -> str:
    """Run a line as the reader's shell does, with this interpreter's programs first."""
    environment = dict(
        os.environ,
        PATH=f'{folder / "bin"}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}'
        f'{os.environ["PATH"]}',
        PYTHONPATH=str(ROOT),
        OMP_NUM_THREADS='1',
    )
    answer = subprocess.run(
        ['bash', '-e', '-c', command],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    assert answer.returncode == 0, f'{command}\n{answer.stdout[-1500:]}{answer.stderr[-3000:]}'
    return answer.stdout + answer.stderr


def module_of(path: str) -> object:
    """A test module as a module, for what it can draw."""
    spec = importlib.util.spec_from_file_location(Path(path).stem + '_of_the_pages', ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope='module')
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages assume: data, photographs, configs, weights, a trained run."""
    mmdet = pytest.importorskip('mmdet')
    pytest.importorskip('safetensors')
    import torch
    from mmengine.registry import MODELS

    from kronattn_mm.cost.config import load_model

    folder = tmp_path_factory.mktemp('desk')
    made = module_of('tests/test_training/conftest.py')
    for target, source in (
        ('tools', ROOT / 'tools'),
        ('configs', ROOT / 'configs'),
        ('mmdet', Path(mmdet.__file__).parent),
        ('photos', folder / 'data' / 'val'),
    ):
        (folder / target).symlink_to(source)
    made.draw_split(folder / 'data', 'train', 8, seed=0)
    made.draw_split(folder / 'data', 'val', 4, seed=1)
    (folder / 'coco' / 'annotations').mkdir(parents=True)
    for split in ('train', 'val'):
        (folder / 'coco' / split).symlink_to(folder / 'data' / split)
        shutil.copy(
            folder / 'data' / f'{split}.json',
            folder / 'coco' / 'annotations' / f'instances_{split}.json',
        )
    base = ROOT / 'configs' / 'efficient_attention'
    # The base stands still, so that the plain weights stay those of the trained detector.
    frozen = (
        "custom_hooks = [dict(type='kronattn_mm.FreezeHook', train=['attention'])]\n"
        "load_from = 'PLAIN.pth'\n"
    )
    for config, file, more in (
        ('attended.py', made.ROW, frozen),
        ('plain.py', 'mask-rcnn_r50_fpn_32xb2-24e_coco.py', ''),
    ):
        text = made.SMALL_CONFIG.format(base=base / file, data=folder / 'data', size=made.SIZE)
        (folder / config).write_text(text + more, encoding='utf-8')
    model, _ = load_model(str(folder / 'plain.py'), None)
    torch.save(dict(state_dict=model.state_dict()), folder / 'PLAIN.pth')
    mobilenet = MODELS.build(dict(type='mmdet.MobileNetV2'))
    for weights in ('mobilenet_v2.pth', 'mobilenet_v2_1.0_imagenet_mmdet.pth'):
        torch.save(dict(state_dict=mobilenet.state_dict()), folder / weights)
    # as mmpretrain writes a classifier
    names = MODELS.build(dict(type='mmpretrain.MobileNetV2')).state_dict()
    state = {f'backbone.{name}': value for name, value in names.items()}
    state['head.fc.weight'], state['head.fc.bias'] = torch.zeros(10, 1280), torch.zeros(10)
    torch.save(dict(state_dict=state), folder / 'classifier.pth')
    (folder / 'bin').mkdir()
    program = folder / 'bin' / 'kronattn'
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kronattn_mm.cli.command "$@"\n')
    program.chmod(0o755)
    shell('python tools/train.py attended.py --cfg-options train_cfg.max_epochs=1', folder)
    shell(
        'kronattn extract attended.py work_dirs/attended/epoch_1.pth attention.safetensors', folder
    )
    return folder


def as_run(command: str, how: Run, folders: dict[str, Path]) -> str:
    """The command with the desk's files in place of the reader's."""
    for word, file in (*how.instead.items(), *STANDING_FOR.items()):
        file = file.format_map(folders) if '{' in file else file
        command = re.sub(rf'(?<![\w./=-]){re.escape(word)}(?![\w./-])', lambda _: file, command)  # noqa: B023
    more = how.more
    if '--cfg-options' in command:
        more = more.removeprefix('--cfg-options ')
    return f'{command} {more}'.strip()


RUNS = [line for line, how in COMMANDS.items() if isinstance(how, Run)]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize('command', RUNS)
def test_the_command_runs(command: str, desk: Path, request: pytest.FixtureRequest):
    how = COMMANDS[command]
    folders = {}
    if how.needs == 'mim':
        pytest.importorskip('mim', reason='mim is in neither set of requirements')
    elif how.needs:
        folders[how.needs] = request.getfixturevalue(how.needs)
    assert shell(as_run(command, how, folders), desk).strip()


def test_words_of_the_reader_are_exchanged_whole():
    how = Run({'FILE': 'a.json'}, more='--cfg-options x=1')
    line = 'kronattn bench CONFIG --json FILE --png FILE.png --shape H W'
    assert as_run(line, how, {}) == (
        'kronattn bench attended.py --json a.json --png drawn.png --shape 96 96 --cfg-options x=1'
    )
    assert as_run('python x.py my/CONFIG --cfg-options y=2', how, {}).endswith('y=2 x=1')
    given = as_run('x WEIGHTS', Run({'WEIGHTS': '{shared}/w.pth'}), {'shared': Path('/s')})
    assert given == 'x /s/w.pth'


def test_slurm_is_asked_for_what_the_page_says(tmp_path: Path):
    """The command of the cluster, with an srun that says what it was given."""
    (tmp_path / 'bin').mkdir()
    srun = tmp_path / 'bin' / 'srun'
    srun.write_text('#!/bin/sh\necho "$@"\n')
    srun.chmod(0o755)
    (tmp_path / 'tools').symlink_to(ROOT / 'tools')
    said = shell('GPUS=32 tools/slurm_train.sh PARTITION JOB CONFIG WORK_DIR', tmp_path)
    assert '--partition=PARTITION --job-name=JOB --gres=gpu:8 --ntasks=32' in said
    assert said.split()[-5:] == ['CONFIG', '--work-dir', 'WORK_DIR', '--launcher', 'slurm']
