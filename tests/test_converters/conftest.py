"""Tiny checkpoints, and the commands called as users call them."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip('mmcv')


@pytest.fixture
def nothing_allowed() -> Iterator[None]:
    """torch's list of types as it is at first."""
    # which puts a type on the list when it is first imported
    import torch._dynamo

    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    yield
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(allowed)


@pytest.fixture
def convert(capsys) -> Callable[..., str]:
    """Run ``kronattn convert`` and return what it printed; the exit code must be ``code``."""
    from kronattn_mm.cli.convert import main

    def call(*arguments: object, code: int = 0) -> str:
        capsys.readouterr()
        got = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert got == code, printed.out + printed.err
        if code:
            assert len((printed.out + printed.err).strip().splitlines()[-1]) < 900
            assert 'Traceback' not in printed.err
        return printed.out + printed.err

    return call


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Save weights as mmengine does, and return the file."""

    def write(
        state: Mapping[str, Tensor] | nn.Module, name: str = 'source.pth', **entries: object
    ) -> Path:
        if isinstance(state, nn.Module):
            state = state.state_dict()
        torch.save(dict(state_dict=state, meta=dict(epoch=3), **entries), tmp_path / name)
        return tmp_path / name

    return write
