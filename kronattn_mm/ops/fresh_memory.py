"""Fresh memory for results of map size, in large pages where the system has them.

Linux hands out the memory of a large block page by page, while it is first written, and with pages
of 4 KB that takes several times as long as the writing itself. Asked to (``madvise``), it hands out
2 MB at a time. numpy asks for all its large arrays; torch does not. It changes no result: where
the system has no large pages, or none left, the small ones come as before.

It pays where one call soon follows the other. A virtual machine may give free large pages back to
its host within seconds, and getting one again then takes longer than many small ones. So pages are
asked for and first written to one after the other, by the clock, and after one that was not ready
no more are asked for. And efficient attention, whose training steps have seconds between them, does
not ask in training.
"""

import ctypes
import functools
import mmap
import time
from collections.abc import Callable

from torch import Tensor

# Bytes from which on it is asked. Of less memory too little is whole large pages.
SMALLEST = 16 << 20
# Bytes of a large page, and the seconds that small ones in its place take: a system that has it
# ready needs a fifth of that, and one that has to get it from its host four times as much.
_LARGE, _SLOW = 2 << 20, 0.0005
# None where the system is not Linux.
_LARGE_PAGES = getattr(mmap, 'MADV_HUGEPAGE', None)


def in_large_pages(fresh: Tensor) -> Tensor:
    """Ask for large pages for a tensor that nothing has been written to yet.

    Args:
        fresh (Tensor): Of any device and size; only a large one in a CPU's memory is asked for.

    Returns:
        Tensor: ``fresh``.
    """
    size = fresh.numel() * fresh.element_size()
    if _LARGE_PAGES is None or size < SMALLEST or fresh.device.type != 'cpu':
        return fresh
    address = fresh.data_ptr()
    first = -(-address // _LARGE) * _LARGE
    for page in range(first, address + size - _LARGE + 1, _LARGE):
        # A refusal is no error: the memory is as good as before.
        _advise()(page, _LARGE, _LARGE_PAGES)
        began = time.perf_counter()
        ctypes.memset(page, 0, 1)
        if time.perf_counter() - began > _SLOW:
            break
    return fresh


@functools.cache
def _advise() -> Callable[[int, int, int], int]:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return madvise
