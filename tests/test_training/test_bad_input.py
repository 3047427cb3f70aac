"""What goes wrong before training is said in one line that names the file."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip('mmdet')

from mmengine.config import Config
from mmengine.registry import init_default_scope

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / 'configs' / 'efficient_attention'


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that runs a tool in this process and returns what it exits with."""
    monkeypatch.syspath_prepend(str(ROOT / 'tools'))
    import library_tool

    def call(tool: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, 'argv', [tool, *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            library_tool.main(tool, 'what the tool is for')
        return exit_info.value.code

    return call


def test_no_config(run: Callable[..., str]) -> None:
    assert run('train.py', '--work-dir', 'out') == 'train.py: error: no config given; see --help'


def test_missing_config_names_the_nearest(run: Callable[..., str]) -> None:
    message = run('train.py', FOLDER / 'mask-rcnn_r50_fpn_ea-res5_32xb2-24e_coco.py')
    assert 'mask-rcnn_r50_fpn_ea-res5_32xb2-24e_coco.py does not exist' in message
    assert 'did you mean' in message and 'ea-res4_32xb2' in message


def test_broken_config(run: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / 'broken.py'
    path.write_text("model = dict(type='X'\n", encoding='utf-8')
    message = run('train.py', path)
    assert message.startswith(f'train.py: error: config {path} cannot be read')


def test_config_of_no_known_library(run: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / 'other.py'
    path.write_text("default_scope = 'mmother'\n", encoding='utf-8')
    message = run('train.py', path)
    assert "'mmother'" in message and "'mmdet', 'mmseg', 'mmpretrain'" in message


@pytest.mark.parametrize(
    ('content', 'said'),
    [
        (None, 'does not exist'),
        ('', 'is empty'),
        ('{"images": [', 'is not valid JSON'),
        ('{"images": [], "annotations": [], "categories": []}', 'lists no images'),
    ],
)
@pytest.mark.parametrize('split', ['train', 'val'])
def test_bad_annotation_file(
    run: Callable[..., str],
    small_config: Callable[..., Path],
    made_set: Path,
    tmp_path: Path,
    content: str | None,
    said: str,
    split: str,
) -> None:
    data = tmp_path / 'data'
    data.mkdir()
    for name in ('train', 'val'):
        (data / f'{name}.json').write_text((made_set / f'{name}.json').read_text('utf-8'), 'utf-8')
    bad = data / f'{split}.json'
    bad.unlink()
    if content is not None:
        bad.write_text(content, encoding='utf-8')
    path = small_config(data=data)
    message = run('train.py', path)
    assert message.startswith(f'train.py: error: annotation file {bad} {said}')
    if split == 'val':
        checkpoint = tmp_path / 'model.pth'
        torch.save(dict(state_dict={}), checkpoint)
        assert run('test.py', path, checkpoint).startswith(
            f'test.py: error: annotation file {bad} {said}'
        )
    assert not (tmp_path / 'work_dirs').exists()


def test_missing_annotations_follow_cfg_options(run: Callable[..., str]) -> None:
    message = run(
        'train.py',
        FOLDER / 'mask-rcnn_r50_fpn_32xb2-24e_coco.py',
        '--cfg-options',
        'train_dataloader.dataset.data_root=nowhere/',
    )
    assert 'nowhere/annotations/instances_train2017.json does not exist' in message
    assert 'train_dataloader.dataset.data_root' in message


def test_bad_checkpoint(
    run: Callable[..., str], small_config: Callable[..., Path], tmp_path: Path
) -> None:
    path = small_config()
    checkpoint = tmp_path / 'model.pth'
    assert (
        run('test.py', path, checkpoint)
        == f'test.py: error: checkpoint {checkpoint} does not exist'
    )
    torch.save(dict(state_dict=dict(weight=torch.rand(100, 100))), checkpoint)
    whole = checkpoint.read_bytes()
    for content in (b'', b'not a checkpoint', whole[: len(whole) // 2]):
        checkpoint.write_bytes(content)
        for tool, arguments in (('test.py', [checkpoint]), ('train.py', ['--resume', checkpoint])):
            message = run(tool, path, *arguments)
            assert message.startswith(f'{tool}: error: checkpoint {checkpoint} is corrupt')
            assert '\n' not in message


def test_checkpoints_of_both_formats_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / 'tools'))
    from library_tool import check_checkpoint

    for zipped in (True, False):
        torch.save(
            dict(state_dict={}), tmp_path / 'model.pth', _use_new_zipfile_serialization=zipped
        )
        check_checkpoint(str(tmp_path / 'model.pth'))
    check_checkpoint('https://example.org/model.pth')


@pytest.fixture
def damaged(made_set: Path, tmp_path: Path) -> Callable[[int | None], tuple[Path, Path]]:
    """Return a function that copies the set, keeping some bytes of one picture or none of it."""

    def damage(kept: int | None) -> tuple[Path, Path]:
        data = tmp_path / 'data'
        shutil.copytree(made_set, data)
        bad = data / 'train' / '001.jpg'
        content = bad.read_bytes()
        bad.unlink()
        if kept is not None:
            bad.write_bytes(content[:kept])
        return data, bad

    return damage


@pytest.mark.parametrize('kept', [20, 2000, -10, None])
def test_broken_or_missing_picture_is_named(
    small_config: Callable[..., Path], damaged: Callable, kept: int | None
) -> None:
    """mmcv's loader does that by itself."""
    from mmdet.registry import DATASETS

    data, bad = damaged(kept)
    config = Config.fromfile(small_config(data=data))
    init_default_scope('mmdet')
    dataset = DATASETS.build(config.train_dataloader.dataset)
    with pytest.raises((AssertionError, FileNotFoundError)) as failure:
        dataset[0]
    assert str(bad) in str(failure.value)


def test_empty_picture_is_named(
    run: Callable[..., str], small_config: Callable[..., Path], damaged: Callable, tmp_path: Path
) -> None:
    """OpenCV's message does not name it."""
    data, bad = damaged(0)
    message = run('train.py', small_config(data=data), '--work-dir', tmp_path / 'run')
    torch.use_deterministic_algorithms(False)
    assert message == f'train.py: error: 1 empty picture file(s): {bad}'
    assert not list((tmp_path / 'run').glob('*.pth'))


@pytest.mark.parametrize('tool', ['train.py', 'test.py'])
@pytest.mark.parametrize('library', ['mmdet', 'mmseg', 'mmpretrain'])
def test_every_library_has_the_tool_in_the_form_that_is_expected(
    monkeypatch: pytest.MonkeyPatch, library: str, tool: str
) -> None:
    pytest.importorskip(library)
    monkeypatch.syspath_prepend(str(ROOT / 'tools'))
    import library_tool

    script = library_tool.load_tool(library, tool)
    assert library in script.__file__
    arguments = ['config.py'] + (['model.pth'] if tool == 'test.py' else [])
    monkeypatch.setattr(sys, 'argv', [tool, *arguments, '--cfg-options', 'a.b=1'])
    parsed = script.parse_args()
    assert (parsed.config, parsed.cfg_options, parsed.launcher) == ('config.py', {'a.b': 1}, 'none')
    assert callable(script.main)


@pytest.mark.parametrize('tool', ['train.py', 'test.py'])
def test_help_is_ours_and_the_librarys(tool: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / 'tools' / tool, '--help'],
        text=True,
        capture_output=True,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
    )
    assert done.returncode == 0, done.stderr
    assert 'example:' in done.stdout and '--cfg-options' in done.stdout
