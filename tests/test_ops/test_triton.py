"""The Triton kernels: by the interpreter, compiled for cards that are not there, and the switch."""

import itertools
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kronattn_mm.layers import EfficientAttention2d
from kronattn_mm.ops import backend, use_backend
from kronattn_mm.ops.projections import Projections
from kronattn_mm.ops.triton import availability

CASES = Path(__file__).with_name('triton_cases.py')


def run_cases(marks):
    """Run them in a process of their own: triton asks for the interpreter when it is imported."""
    pytest.importorskip('triton', reason='triton is not installed')
    result = subprocess.run(
        [sys.executable, '-m', 'pytest', '-q', str(CASES), '-m', marks, '-p', 'no:cacheprovider'],
        env={**os.environ, 'TRITON_INTERPRET': '1', 'CUDA_VISIBLE_DEVICES': ''},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]


def test_under_the_interpreter():
    run_cases('not slow')


@pytest.mark.slow
def test_larger_cases_under_the_interpreter():
    run_cases('slow')


def launches(monkeypatch, channels, dtype, normalization, shape=(56, 80)):
    """Each kernel of a training step with what it is launched with; nothing runs."""
    from ahead_of_time import Recorder

    from kronattn_mm.ops.triton import backward, block, forward

    recorders = []
    for module, names in ((forward, forward.__all__), (backward, backward.__all__)):
        for name in names:
            recorders.append(Recorder(getattr(module, name)))
            monkeypatch.setattr(module, name, recorders[-1])
    d, d_k, d_v, heads = channels
    sizes = [(d_k, d), d_k, (d_k, d), d_k, (d_v, d), d_v, (d, d_v), d]
    weights = [torch.zeros(size, dtype=dtype, requires_grad=True) for size in sizes]
    x = torch.zeros(1, d, *shape, dtype=dtype)
    block.block(x, Projections(*weights), heads, normalization, dtype).sum().backward()
    assert all(len(recorder.launches) == 1 for recorder in recorders)
    return [(recorder.kernel, *recorder.launches[0][1:]) for recorder in recorders]


@pytest.mark.slow
@pytest.mark.parametrize('capability', [80, 90])
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32])
def test_compiled_for_cards_that_are_not_there(monkeypatch, dtype, capability):
    """They compile, fit the smallest card's shared memory and keep to their registers.

    88 KiB at most, so that consumer cards, with 99 KiB, can launch them; cards of capability 9.0
    have 227 KiB. Spilled bytes of a thread lie in its cache; a few hundred are accepted on cards
    whose tensor cores take their operands from registers.
    """
    pytest.importorskip('triton', reason='triton is not installed')
    if availability.interpreted():
        pytest.skip('the interpreter, which TRITON_INTERPRET=1 asked for, compiles nothing')
    from ahead_of_time import compile_for

    settings = [((256, 64, 64, 1), 'softmax'), ((256, 64, 64, 8), 'scaling')]
    for channels, normalization in settings:
        with monkeypatch.context() as patch:
            recorded = launches(patch, channels, dtype, normalization)
        for kernel, args, constants in recorded:
            compiled = compile_for(kernel, args, constants, capability)
            what = kernel.__name__, channels, normalization, compiled
            assert compiled.shared <= (227 if capability == 90 else 88) << 10, what
            assert compiled.spilled <= (128 if capability == 90 else 512), what
            in_float32 = kernel.__name__ == 'merge'
            assert compiled.tensor_cores != in_float32, what


def test_no_compilation_for_each_size(monkeypatch):
    """What is compiled in is the same for all maps of a layer: detectors see hundreds of sizes."""
    pytest.importorskip('triton', reason='triton is not installed')
    if availability.interpreted():
        pytest.skip('the interpreter, which TRITON_INTERPRET=1 asked for, compiles nothing')
    compiled_in = []
    for shape in ((7, 9), (56, 80)):
        with monkeypatch.context() as patch:
            recorded = launches(patch, (64, 16, 16, 1), torch.bfloat16, 'softmax', shape)
        compiled_in.append([constants for _, _, constants in recorded])
    assert compiled_in[0] == compiled_in[1]


class TestSwitch:
    @pytest.fixture(autouse=True)
    def nothing_said(self, monkeypatch):
        monkeypatch.setattr('kronattn_mm.ops.backend._told', set())
        monkeypatch.delenv('TRITON_INTERPRET', raising=False)

    def test_names_what_is_missing(self, monkeypatch):
        layer, x = EfficientAttention2d(8, 4, 4), torch.randn(1, 8, 3, 3)
        monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
        for version, what in (
            (None, 'the package triton is not installed'),
            ('3.4.0', 'triton is 3.4.0, and the kernels need 3.5'),
            ('3.7.1', 'torch sees no CUDA device'),
        ):
            monkeypatch.setattr(availability, '_version', lambda version=version: version)
            with pytest.raises(RuntimeError, match=what), use_backend('triton'):
                raise NotImplementedError
            monkeypatch.setenv('KRONATTN_BACKEND', 'triton')
            with pytest.raises(RuntimeError, match=f"KRONATTN_BACKEND 'triton' .*{what}"):
                layer(x)
            with use_backend('torch'):
                layer(x)
            monkeypatch.delenv('KRONATTN_BACKEND')
            layer(x)

    def test_logged_once(self, caplog, monkeypatch):
        caplog.set_level(logging.INFO, 'kronattn_mm')
        layer, x = EfficientAttention2d(8, 4, 4), torch.randn(1, 8, 9, 9)
        layer(x)
        assert not caplog.records
        for name in ('reference', 'torch', 'reference'):
            with use_backend(name):
                layer(x), layer(x)
        monkeypatch.setenv('KRONATTN_BACKEND', 'torch')
        layer(x), layer(x)
        assert [record.message for record in caplog.records] == [
            'attention operators: backend reference',
            'attention operators: backend torch',
            'attention operators: backend torch, from KRONATTN_BACKEND',
        ]

    def test_forms_are_logged_once(self, caplog):
        caplog.set_level(logging.INFO, 'kronattn_mm')
        for form, reason in itertools.product(('triton', 'torch'), ('', 'the input is empty')):
            backend.tell('EfficientAttention2d', form, reason)
            backend.tell('EfficientAttention2d', form, reason)
        assert [record.message for record in caplog.records] == [
            'EfficientAttention2d: triton',
            'EfficientAttention2d: triton (the input is empty)',
            'EfficientAttention2d: torch',
            'EfficientAttention2d: torch (the input is empty)',
        ]


def test_nothing_imports_triton_before_it_runs():
    code = (
        'import sys, torch; before = set(sys.modules)\n'
        'from kronattn_mm.layers import EfficientAttention2d as E\n'
        'E(8, 4, 4)(torch.randn(1, 8, 9, 9))\n'
        'print([m for m in set(sys.modules) - before if m.split(".")[0] == "triton"])'
    )
    out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == '[]'
