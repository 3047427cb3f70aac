"""Large pages for fresh memory: what is asked for, and of whom."""

import mmap
import re
from pathlib import Path

import pytest
import torch

from kronattn_mm.layers import EfficientAttention2d
from kronattn_mm.ops import fresh_memory
from kronattn_mm.ops.fresh_memory import SMALLEST, in_large_pages

LARGE = 2 << 20
LARGE_PAGES = Path('/sys/kernel/mm/transparent_hugepage/enabled')


@pytest.fixture
def asked(monkeypatch):
    calls = []
    monkeypatch.setattr(fresh_memory, '_advise', lambda: lambda *call: calls.append(call))
    return calls


@pytest.mark.skipif(not hasattr(mmap, 'MADV_HUGEPAGE'), reason='large pages are asked of Linux')
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize('offset', [0, 1, 513])
def test_whole_pages_inside_the_tensor(asked, dtype, offset):
    fresh = torch.empty(offset + SMALLEST // dtype.itemsize, dtype=dtype)[offset:]
    assert in_large_pages(fresh) is fresh
    assert {call[1:] for call in asked} == {(LARGE, mmap.MADV_HUGEPAGE)}
    starts = [start for start, *_ in asked]
    assert starts == list(range(starts[0], starts[-1] + 1, LARGE)) and starts[0] % LARGE == 0
    end = fresh.data_ptr() + fresh.numel() * fresh.element_size()
    assert 0 <= starts[0] - fresh.data_ptr() < LARGE, 'from the first whole one'
    assert 0 <= end - starts[-1] - LARGE < LARGE, 'to the last'


@pytest.mark.skipif(not hasattr(mmap, 'MADV_HUGEPAGE'), reason='large pages are asked of Linux')
def test_each_page_is_written_to_and_nothing_else(asked):
    fresh = in_large_pages(torch.ones(SMALLEST, dtype=torch.uint8))
    written = (fresh != 1).nonzero()[:, 0] + fresh.data_ptr()
    assert written.tolist() == [start for start, *_ in asked] and len(asked) >= 7


def test_nothing_is_asked_for_what_is_small_or_elsewhere(asked, monkeypatch):
    in_large_pages(torch.empty(SMALLEST // 4 - 1))
    in_large_pages(torch.empty(SMALLEST, device='meta'))
    in_large_pages(torch.empty(0, SMALLEST))
    monkeypatch.setattr(fresh_memory, '_LARGE_PAGES', None)  # another system
    in_large_pages(torch.empty(SMALLEST))
    assert not asked


@pytest.mark.skipif(not hasattr(mmap, 'MADV_HUGEPAGE'), reason='large pages are asked of Linux')
def test_efficient_attention_asks_at_inference(asked):
    layer, x = EfficientAttention2d(256, 16, 16, zero_init=False), torch.randn(1, 256, 128, 129)
    with torch.no_grad():
        layer(x)
    number = len(asked)
    assert number == len(set(asked)) > 0, 'once for each page'
    layer(x.requires_grad_()).sum().backward()
    assert len(asked) == number, 'nor in its backward pass'


@pytest.mark.skipif(not LARGE_PAGES.exists(), reason='no Linux with transparent large pages')
def test_linux_has_been_asked():
    fresh = in_large_pages(torch.empty(16 << 20))
    middle, inside = fresh.data_ptr() + 2 * fresh.numel(), False
    for line in Path('/proc/self/smaps').read_text().splitlines():
        if found := re.match(r'([0-9a-f]+)-([0-9a-f]+) ', line):
            inside = int(found[1], 16) <= middle < int(found[2], 16)
        elif inside and line.startswith('VmFlags:'):
            assert 'hg' in line.split()
            return
    raise AssertionError('the tensor is in no mapping of this process')
