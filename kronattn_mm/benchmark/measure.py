"""Time and memory of functions, measured so that they can be compared.

Functions take turns, so that whatever else the machine does hits all of them; each turn repeats
short functions until the clock resolves them; the median of the turns is taken. Two clocks are
read: that on the wall, and the processor time of this process, which does not grow when other
programs take the cores.
"""

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


@dataclass(frozen=True)
class Time:
    """Seconds of one call: medians over the turns.

    Attributes:
        wall: By the clock on the wall.
        cpu: Processor time of all threads; None on a GPU, where it says nothing.
        fastest: The shortest turn by the clock on the wall.
    """

    wall: float
    cpu: float | None
    fastest: float


def time_interleaved(
    functions: Mapping[str, Callable[[], Any]],
    repetitions: int = 15,
    shortest: float = 0.005,
    device: str | torch.device = 'cpu',
    progress: Callable[[], Any] = lambda: None,
) -> dict[str, Time]:
    """Time functions in turns.

    Args:
        functions (Mapping[str, Callable]): By name, without arguments.
        repetitions (int): Turns of each function. Defaults to 15.
        shortest (float): Seconds that a turn takes at least; shorter functions are called several
            times in it. Defaults to 0.005.
        device (str or torch.device): Where the functions work, to wait for it. Defaults to CPU.
        progress (Callable): Called after each turn.

    Raises:
        ValueError: If ``repetitions`` is smaller than one.
    """
    if repetitions < 1:
        raise ValueError(f'repetitions must be at least 1, got {repetitions!r}')
    wait = _waiting(device)
    calls = {}
    for name, function in functions.items():
        function()  # allocations, kernels that are chosen or compiled at first use
        wait()
        start = time.perf_counter()
        function()
        wait()
        calls[name] = max(1, int(shortest / max(time.perf_counter() - start, 1e-7)))
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
    for _ in range(repetitions):
        for name, function in functions.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(calls[name]):
                function()
            wait()
            turns[name].append(
                (
                    (time.perf_counter() - wall) / calls[name],
                    (time.process_time() - cpu) / calls[name],
                )
            )
            progress()
    on_cpu = torch.device(device).type == 'cpu'
    return {
        name: Time(
            statistics.median(wall for wall, _ in values),
            statistics.median(cpu for _, cpu in values) if on_cpu else None,
            min(wall for wall, _ in values),
        )
        for name, values in turns.items()
    }


def peak_memory(function: Callable[[], Any], device: str | torch.device = 'cpu') -> int:
    """Return the most bytes that a call has in use at one time beyond what was there before.

    The allocator's own records are read: what operators return as well as what they need while
    they run. On a CPU they come from torch's profiler, on a GPU from its caching allocator.
    """
    function()
    if torch.device(device).type == 'cuda':
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = function()
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device) - before
        del result
        return peak
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function()
    del result
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in profiler.profiler.kineto_results.events()
        if event.name() == '[memory]'
    )
    used = peak = 0
    for _, size in changes:
        used += size
        peak = max(peak, used)
    return peak


def keep_freed_memory() -> None:
    """Let glibc keep what is freed, as the caching allocators of GPUs and of TensorFlow do.

    By default large blocks go back to the operating system at once, and a function that needs
    hundreds of megabytes spends most of its time on getting them again, page by page. This holds
    for the rest of the process.

    Raises:
        OSError: If the C library is not glibc.
    """
    try:
        mallopt = ctypes.CDLL('libc.so.6').mallopt
    except (OSError, AttributeError) as error:
        raise OSError('keeping freed memory needs glibc (Linux)') from error
    if not (mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)):
        raise OSError('glibc refused to keep freed memory')


def _waiting(device: str | torch.device) -> Callable[[], None]:
    if torch.device(device).type == 'cuda':
        return lambda: torch.cuda.synchronize(device)
    return lambda: None
