"""Reading what is safe to read, writing whole files or none, and publishing."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from converted import assert_same, load
from mmengine.logging import MessageHub
from torch import nn

from kronattn_mm.converters import ConversionError, read_checkpoint, write_checkpoint

ROOT = Path(__file__).resolve().parents[2]


class Trap:
    """Runs a command when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder / 'sprung'),)


def training_checkpoint(path: Path) -> dict:
    """What mmengine's runner saves, logs and numpy numbers included."""
    hub = MessageHub.get_instance('converters')
    hub.update_scalar('train/loss', 1.5)
    hub.update_info('epoch', np.int64(3))
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3, 4, 4)).sum().backward()
    optimizer.step()
    checkpoint = dict(
        state_dict=model.state_dict(),
        optimizer=optimizer.state_dict(),
        param_schedulers=[dict(last_step=3)],
        message_hub=hub.state_dict(),
        meta=dict(
            epoch=3,
            iter=np.int64(300),
            cfg='model = dict()',
            seed=7,
            dataset_meta=dict(classes=('cat', 'dog'), palette=[(1, 2, 3)]),
            experiment_name='run',
            hooks=None,
        ),
    )
    torch.save(checkpoint, path)
    return checkpoint


def test_checkpoints_of_mmengine_are_read_without_trust(
    nothing_allowed: None, tmp_path: Path
) -> None:
    checkpoint = training_checkpoint(tmp_path / 'epoch_3.pth')
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / 'epoch_3.pth', weights_only=True)
    source = read_checkpoint(tmp_path / 'epoch_3.pth')
    assert_same(source.state, checkpoint['state_dict'])
    assert source.others == ('optimizer', 'param_schedulers', 'message_hub')
    assert source.versions['1'] == {'version': 2}
    assert not torch.serialization.get_safe_globals()  # nothing stays allowed
    torch.serialization.add_safe_globals([np.ndarray])
    read_checkpoint(tmp_path / 'epoch_3.pth')
    assert torch.serialization.get_safe_globals() == [np.ndarray]  # nor is anything taken away


def test_pickles_that_could_run_code_are_refused(convert, tmp_path: Path) -> None:
    file, output = tmp_path / 'trap.pth', tmp_path / 'out.pth'
    torch.save(dict(state_dict={'a.weight': torch.ones(2)}, meta=dict(x=Trap(tmp_path))), file)
    text = convert('nesting', file, output, '--rename', 'a=b', code=1)
    assert 'posix.mkdir' in text and 'could run any code' in text and '--trust-pickle' in text
    assert not (tmp_path / 'sprung').exists() and not output.exists()
    text = convert('nesting', file, output, '--rename', 'a=b', '--trust-pickle')
    assert (tmp_path / 'sprung').is_dir()
    assert list(load(output)) == ['b.weight']
    # getattr, with which mmengine's logs name their statistics, reaches nothing else.
    file.write_bytes(pickle.dumps(dict(state_dict={}, f=Reached()), protocol=2))
    text = convert('nesting', file, tmp_path / 'no.pth', '--rename', 'a=b', code=1)
    assert not (tmp_path / 'no.pth').exists() and 'getattr' in text


class Reached:
    def __reduce__(self):
        return getattr, (np.ndarray, 'tofile')


def test_whole_models_are_read_if_trusted(convert, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1))
    torch.save(model, tmp_path / 'model.pth')
    assert 'Sequential' in convert(
        'nesting', tmp_path / 'model.pth', tmp_path / 'out.pth', '--rename', '0=stem', code=1
    )
    convert(
        'nesting',
        tmp_path / 'model.pth',
        tmp_path / 'out.pth',
        '--rename',
        '0=stem',
        '--trust-pickle',
    )
    assert torch.equal(load(tmp_path / 'out.pth')['stem.weight'], model[0].weight)


@pytest.mark.parametrize(
    ('content', 'words'),
    [
        (b'', 'is empty'),
        (b'<html><body>Not found</body></html>', 'cannot be read as a checkpoint'),
        (b'PK\x03\x04' + b'0' * 500, 'cannot be read as a checkpoint'),
    ],
)
def test_files_that_are_no_checkpoint(convert, tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / 'x.pth').write_bytes(content)
    assert words in convert('publish', tmp_path / 'x.pth', tmp_path / 'out.pth', code=1)
    assert [path.name for path in tmp_path.iterdir()] == ['x.pth']


def test_missing_and_strange_content(convert, save, tmp_path: Path) -> None:
    save(nn.Linear(2, 2), 'epoch_12.pth')
    output = tmp_path / 'out.pth'
    assert 'did you mean' in convert('publish', tmp_path / 'epoch_21.pth', output, code=1)
    assert 'is a folder' in convert('publish', tmp_path, output, code=1)
    assert "has no entry 'ema'; its entries are state_dict, meta" in convert(
        'publish', tmp_path / 'epoch_12.pth', output, '--entry', 'ema', code=1
    )
    torch.save(dict(epoch=3), tmp_path / 'a.pth')
    assert 'holds no weights; its entries are epoch' in convert(
        'publish', tmp_path / 'a.pth', output, code=1
    )
    torch.save([1, 2], tmp_path / 'b.pth')
    assert 'holds a list, not a checkpoint' in convert(
        'publish', tmp_path / 'b.pth', output, code=1
    )
    assert not output.exists()


def test_outputs_are_whole_and_replace_nothing_unasked(
    convert, save, tmp_path: Path, monkeypatch
) -> None:
    source = save({'a.weight': torch.ones(2)})
    output = tmp_path / 'deep' / 'out.pth'
    report = tmp_path / 'report.json'
    text = convert('nesting', source, output, '--rename', 'a=b', '--dry-run', '--report', report)
    assert 'nothing was written' in text and not output.parent.exists()
    assert json.loads(report.read_text())['mapped'] == [
        dict(key='b.weight', origins=['a.weight'], shape=[2])
    ]
    convert('nesting', source, output, '--rename', 'a=b')
    meta = torch.load(output, weights_only=True)['meta']
    assert meta == dict(epoch=3, converted_from='source.pth')
    before = output.read_bytes()
    assert '--force replaces it' in convert('nesting', source, output, '--rename', 'a=c', code=1)
    assert 'is the checkpoint itself' in convert(
        'nesting', source, source, '--rename', 'a=c', '--force', code=1
    )

    def full(*arguments: object) -> None:
        arguments[1].write(b'half a file')
        raise OSError('No space left on device')

    monkeypatch.setattr(torch, 'save', full)
    assert 'No space left' in convert(
        'nesting', source, output, '--rename', 'a=c', '--force', code=1
    )
    assert output.read_bytes() == before
    assert list(output.parent.iterdir()) == [output]
    with pytest.raises(ConversionError, match='cannot be written'):
        write_checkpoint(source / 'below' / 'a-file.pth', {})


def test_published_files_are_small_safe_and_named_by_their_hash(convert, tmp_path: Path) -> None:
    checkpoint = training_checkpoint(tmp_path / 'epoch_3.pth')
    text = convert('publish', tmp_path / 'epoch_3.pth', tmp_path / 'public' / 'net.pth')
    (file,) = (tmp_path / 'public').iterdir()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert file.name == f'net-{digest[:8]}.pth'
    assert f'written to {file}' in text and 'metadata kept: epoch, iter, cfg, dataset_meta' in text
    assert 'left out of the metadata: seed, experiment_name, hooks (' in text
    content = torch.load(file, weights_only=True)
    assert content.keys() == {'state_dict', 'meta'}
    assert content['meta'] == dict(
        epoch=3,
        iter=300,
        cfg='model = dict()',
        dataset_meta=dict(classes=('cat', 'dog'), palette=[(1, 2, 3)]),
    )
    assert_same(content['state_dict'], checkpoint['state_dict'])
    assert content['state_dict']._metadata['1'] == {'version': 2}
    assert file.stat().st_size < (tmp_path / 'epoch_3.pth').stat().st_size
    # The way in which torch.hub checks it.
    state = torch.hub.load_state_dict_from_url(
        file.as_uri(),
        model_dir=str(tmp_path / 'hub'),
        check_hash=True,
        weights_only=True,
        progress=False,
    )
    assert_same(state['state_dict'], checkpoint['state_dict'])
    # The same weights make the same file, whatever it is called and however often.
    text = convert(
        'publish', file, tmp_path / 'other.pth', '--drop-meta', 'cfg', '--keep-meta', 'epoch'
    )
    (first,) = tmp_path.glob('other-*.pth')
    convert('publish', first, tmp_path / 'again.pth')
    assert next(tmp_path.glob('again-*.pth')).name.split('-')[1] == first.name.split('-')[1]
    assert '--force replaces it' in convert('publish', first, tmp_path / 'again.pth', code=1)
    assert "has no entry 'sed'" in convert(
        'publish', tmp_path / 'epoch_3.pth', tmp_path / 'n.pth', '--keep-meta', 'sed', code=1
    )
    assert not list(tmp_path.glob('n*.pth')) and not list(tmp_path.glob('.*'))


def test_views_do_not_bring_the_rest_along(convert, save, tmp_path: Path) -> None:
    big = torch.zeros(1000, 1000)
    convert('publish', save({'a': big[:2], 'b': big[0].half()}), tmp_path / 'small.pth')
    (file,) = tmp_path.glob('small-*.pth')
    assert file.stat().st_size < 50_000
    assert load(file)['b'].dtype == torch.float16


def test_mistakes_in_the_arguments(convert, save, tmp_path: Path) -> None:
    assert "no converter 'bakbone'; did you mean 'backbone'?" in convert('bakbone', code=2)
    assert 'kinds (each has --help' in convert(code=2)
    for arguments, words in (
        (('nesting', 'a.pth'), 'name an OUTPUT'),
        (('nesting', 'a.pth', 'b.pth', '--rename', 'a'), 'takes OLD=NEW'),
        (('nesting', 'a.pth', 'b.pth', '--allow', 'x'), '--allow needs --config'),
        (('non-local', 'a.pth', 'b.pth'), 'give --mode or --source-config'),
        (
            ('non-local', 'a.pth', 'b.pth', '--mode', 'dot_product', '--compare', 'x.jpg'),
            'needs --source-config',
        ),
        (('backbone', 'a.pth', 'b.pth', '--to', 'caffe'), 'invalid choice'),
    ):
        with pytest.raises(SystemExit) as caught:
            convert(*arguments)
        assert caught.value.code == 2, words


@pytest.mark.slow
@pytest.mark.parametrize(
    'script',
    [
        'backbone_names',
        'nesting',
        'publish',
        'non_local_to_efficient_attention',
        'reference_efficient_attention',
    ],
)
def test_scripts_say_how_to_call_them(script: str) -> None:
    answer = subprocess.run(
        [sys.executable, ROOT / 'tools' / 'model_converters' / f'{script}.py', '--help'],
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    assert 'example:' in answer.stdout and '--dry-run' in answer.stdout
