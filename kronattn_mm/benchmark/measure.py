"""Time and memory of functions, measured so that they can be compared.

Functions take turns, so that whatever else the machine does hits all of them; each turn repeats
short functions until the clock resolves them; the median of the turns is taken. Two clocks are
read: that on the wall, and the processor time of this process, which does not grow when other
programs take the cores.
"""

import ctypes
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

try:
    import resource
except ImportError:  # not Unix, which counts the pages that it hands out
    resource = None

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
# From which size on glibc takes a block from the system by itself, before it has seen any freed.
_FIRST_THRESHOLD = 128 << 10


@dataclass(frozen=True)
class Time:
    """Seconds of one call: medians over the turns.

    Attributes:
        wall: By the clock on the wall.
        cpu: Processor time of all threads; None on a GPU, where it says nothing.
        fastest: The shortest turn by the clock on the wall.
        quartiles: Between these lies half of the turns, by the clock on the wall.
        faults: Pages of memory that the system handed out anew; None on a GPU, and where the
            system does not say.
    """

    wall: float
    cpu: float | None
    fastest: float
    quartiles: tuple[float, float]
    faults: float | None = None


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
    turns: dict[str, list[tuple[float, ...]]] = {name: [] for name in functions}
    for _ in range(repetitions):
        for name, function in functions.items():
            faults, wall, cpu = _page_faults(), time.perf_counter(), time.process_time()
            for _ in range(calls[name]):
                function()
            wait()
            took = time.perf_counter() - wall, time.process_time() - cpu, _page_faults() - faults
            turns[name].append(tuple(amount / calls[name] for amount in took))
            progress()
    on_cpu = torch.device(device).type == 'cpu'
    return {
        name: Time(
            statistics.median(wall for wall, *_ in values),
            statistics.median(cpu for _, cpu, _ in values) if on_cpu else None,
            min(wall for wall, *_ in values),
            _quartiles([wall for wall, *_ in values]),
            statistics.median(faults for *_, faults in values) if on_cpu and resource else None,
        )
        for name, values in turns.items()
    }


def _page_faults() -> int:
    """Return how many pages of memory this process was handed so far; 0 where nobody counts."""
    if resource is None:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method='inclusive')
    return first, third


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


def operator_calls(function: Callable[[], Any], device: str | torch.device = 'cpu') -> int:
    """Count what a call launches: operators that compute on a CPU (views do not), kernels on a GPU.

    Code made by torch.compile is not seen on a CPU.
    """
    function()
    if torch.device(device).type == 'cuda':
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            function()
            torch.cuda.synchronize(device)
        return sum(event.count for event in profiler.key_averages() if event.device_time_total)
    with _Counter() as counter:
        function()
    return counter.calls


class _Counter(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.calls += not func.is_view
        return func(*args, **(kwargs or {}))


def kept_for_backward(function: Callable[[], Any], inputs: Iterable[Tensor] = ()) -> int:
    """Return the bytes that the graph of a call holds for its backward pass, each storage once.

    Args:
        function (Callable): A forward pass that is differentiated, with or without a backward pass.
        inputs (Iterable[Tensor]): What is there anyway and does not count: input and weights.
    """
    own = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    storages: dict[int, torch.UntypedStorage] = {}  # held, so that no address comes twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return sum(storage.nbytes() for storage in storages.values())


def keep_freed_memory() -> None:
    """Let glibc keep what is freed, as the caching allocators of GPUs and of TensorFlow do.

    By default large blocks go back to the operating system at once, and a function that needs
    hundreds of megabytes spends most of its time on getting them again, page by page. This holds
    for the rest of the process.

    Raises:
        OSError: If the C library is not glibc.
    """
    _set_malloc({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1}, 'keep')


def return_freed_memory() -> None:
    """Let glibc give every block of 128 KB or more back as soon as it is freed.

    That is where it starts; by default it then keeps more and more, as far as the blocks that it
    sees freed suggest. This holds for the rest of the process.

    Raises:
        OSError: If the C library is not glibc.
    """
    _set_malloc({_M_MMAP_THRESHOLD: _FIRST_THRESHOLD}, 'return')


def _set_malloc(options: Mapping[int, int], what: str) -> None:
    try:
        mallopt = ctypes.CDLL('libc.so.6').mallopt
    except (OSError, AttributeError) as error:
        raise OSError(f'to {what} freed memory needs glibc (Linux)') from error
    if not all(mallopt(option, value) for option, value in options.items()):
        raise OSError(f'glibc refused to {what} freed memory')


def _waiting(device: str | torch.device) -> Callable[[], None]:
    if torch.device(device).type == 'cuda':
        return lambda: torch.cuda.synchronize(device)
    return lambda: None
