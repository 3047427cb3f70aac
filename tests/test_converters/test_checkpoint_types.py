"""What mmengine's checkpoints hold is read, and nothing that could run."""

import os
import pickle
import subprocess
import sys

import pytest
import torch

pytest.importorskip('mmengine')
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.runner import checkpoint as mmengine_checkpoint

from kronattn_mm import checkpoint_types

pytestmark = pytest.mark.skipif(
    not checkpoint_types.knows_allowed_types(), reason='torch < 2.6 reads everything'
)


@pytest.fixture
def bare(nothing_allowed, monkeypatch):
    """torch's list as it is at first, and an mmengine that allows nothing, as 0.10.7 is."""
    monkeypatch.delattr(mmengine_checkpoint, '_safe_torch_load', raising=False)


@pytest.fixture
def log(tmp_path):
    """A checkpoint with the log of a training."""
    hub = MessageHub.get_instance('of_this_test')
    hub.update_scalar('train/loss', 0.5)
    hub.update_info('epoch', 3)
    path = tmp_path / 'epoch_3.pth'
    torch.save(dict(state_dict={}, message_hub=hub.state_dict()), path)
    return path


def test_a_log_is_refused_until_it_is_allowed(bare, log):
    with pytest.raises(pickle.UnpicklingError, match='HistoryBuffer'):
        torch.load(log)
    checkpoint_types.allow_own_checkpoints()
    scalars = torch.load(log)['message_hub']['log_scalars']
    assert isinstance(scalars['train/loss'], HistoryBuffer)
    assert scalars['train/loss'].mean() == 0.5


def test_other_attributes_stay_out_of_reach(bare, tmp_path):
    class Reaching:
        def __reduce__(self):
            return getattr, (HistoryBuffer, '__init__')

    torch.save(dict(log=Reaching()), tmp_path / 'reaching.pth')
    checkpoint_types.allow_own_checkpoints()
    with pytest.raises(pickle.UnpicklingError, match='getattr'):
        torch.load(tmp_path / 'reaching.pth')


def test_an_mmengine_that_allows_them_itself_is_left_alone(bare, monkeypatch):
    monkeypatch.setattr(mmengine_checkpoint, '_safe_torch_load', torch.load, raising=False)
    checkpoint_types.allow_own_checkpoints()
    assert not torch.serialization.get_safe_globals()


def test_the_variable_of_the_page_reads_everything(log):
    """docs/troubleshooting.md: for programs that do not import this package."""
    program = f'import torch; print(len(torch.load({str(log)!r})))'
    answer = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', program],
        capture_output=True,
        text=True,
        env=dict(os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD='1'),
    )
    assert answer.stdout.strip() == '2', answer.stderr
