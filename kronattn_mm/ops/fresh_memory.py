"""Fresh memory for results of map size, in large pages where the system has them.

Linux hands out the memory of a large block page by page, while it is first written, and with pages
of 4 KB that takes several times as long as the writing itself. Asked to (``madvise``), it hands out
2 MB at a time. numpy asks for all its large arrays; torch does not. It changes no result: where
the system has no large pages, or none left, the small ones come as before.

Each large page is first written to here, by one thread in their order. Left to the operator's
threads, which get them two at a time, the system of a virtual machine kept taking pages that its
host had to give it anew, at twenty times the price, where others had just become free.

It pays where one call soon follows the other: such a machine gives free large pages back to its
host within seconds. So efficient attention, whose training steps have seconds between them, does
not ask in training.
"""

import ctypes
import functools
import mmap
from collections.abc import Callable

from torch import Tensor

# Bytes from which on it is asked. Of less memory too little is whole large pages.
SMALLEST = 16 << 20
# Bytes of a large page.
_LARGE = 2 << 20
# None where the system is not Linux.
_LARGE_PAGES = getattr(mmap, 'MADV_HUGEPAGE', None)


def in_large_pages(fresh: Tensor) -> Tensor:
    """Ask for large pages for a tensor that nothing has been written to yet, and get them.

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
        ctypes.memset(page, 0, 1)
    return fresh


@functools.cache
def _advise() -> Callable[[int, int, int], int]:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return madvise
