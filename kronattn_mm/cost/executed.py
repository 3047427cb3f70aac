"""What a layer really executes: counted on its operators while it runs, whatever it is made of.

It runs on fake tensors, which have a shape and a storage size but no data, so that a map of
224 x 320 costs neither time nor memory. Layers with an operator that torch knows nothing of (a
compiled one of mmcv) run for real, and what such an operator multiplies is not seen.

What is counted is the straightforward form: that which is faster on one device or for one size
(docs/performance.md) computes the same with other tensors.

Multiply-accumulates are those of convolutions, matrix products and fused attention; softmax, norms
and everything else done element by element are not counted. Memory is counted as the size of the
tensors that operators return; what an operator needs inside while it runs is not seen.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from ..modes import inference_mode_of
from ..ops import use_backend


@dataclass(frozen=True)
class ExecutedCost:
    """Cost of running one layer, or several, on one image in the dtype of the parameters.

    Attributes:
        params: Number of parameters.
        macc: Multiply-accumulates of one forward pass.
        allocated: Bytes of all tensors that a forward pass without gradients computes, each when
            it is made. Views share what they view. Less is in use at any one time.
        kept: Bytes that a forward pass with gradients keeps for the backward pass, each storage
            once, without the layer's input and its parameters, which exist anyway.
        complete: False if the layer runs an operator that torch cannot see into (a compiled one of
            mmcv): its products are missing in ``macc``, so that this is a lower bound.
    """

    params: int = 0
    macc: int = 0
    allocated: int = 0
    kept: int = 0
    complete: bool = True

    def __add__(self, other: 'ExecutedCost') -> 'ExecutedCost':
        return ExecutedCost(
            self.params + other.params,
            self.macc + other.macc,
            self.allocated + other.allocated,
            self.kept + other.kept,
            self.complete and other.complete,
        )


def executed_cost(layer: nn.Module, shape: Sequence[int], with_cp: bool = False) -> ExecutedCost:
    """Count what a layer executes on one image.

    The layer is run in eval mode, because a batch of one is too little for some norms to train
    on; dropout's masks are therefore not in ``kept``. Training flags are put back afterwards.

    Args:
        layer (nn.Module): Any layer that takes one tensor.
        shape (Sequence[int]): Shape ``(N, C, *spatial)`` of its input; the cost is for one image,
            whatever N is.
        with_cp (bool): The layer is recomputed in the backward pass. Defaults to False.

    Raises:
        ValueError: If the layer cannot run on an input of that shape.
    """
    shape = (1, *shape[1:])
    try:
        return _on_one_image(layer, shape, with_cp, fake=True)
    except (NotImplementedError, RuntimeError):
        # An operator without a fake kernel, or data that decide what is computed.
        try:
            return _on_one_image(layer, shape, with_cp, fake=False)
        except RuntimeError as error:
            raise ValueError(
                f'{type(layer).__name__} cannot run on an input of shape {shape}: {error}'
            ) from error


@contextlib.contextmanager
def counting(module: nn.Module) -> Iterator[Callable[[], int]]:
    """Count the multiply-accumulates of what runs inside on fake tensors, in eval mode.

    Args:
        module (nn.Module): The model that will run; its training flags are put back afterwards.

    Yields:
        Callable: Returns the multiply-accumulates counted so far.
    """
    counter = _flop_counter()
    reference = use_backend('reference')
    with reference, evaluating(module), FakeTensorMode(allow_non_fake_inputs=True), counter:
        yield lambda: counter.get_total_flops() // 2


def _on_one_image(
    layer: nn.Module, shape: tuple[int, ...], with_cp: bool, fake: bool
) -> ExecutedCost:
    own = dict(layer.named_parameters())
    params = sum(parameter.numel() for parameter in own.values())
    own.update(layer.named_buffers())
    context: Any = contextlib.nullcontext()
    if fake:
        context = FakeTensorMode(allow_non_fake_inputs=True)
        own = {name: context.from_tensor(tensor) for name, tensor in own.items()}

    def run(x: Tensor) -> Any:
        return functional_call(layer, own, (x,))

    with use_backend('reference'), context, evaluating(layer):
        like = next(iter(own.values()), torch.zeros(()))
        x = torch.zeros(shape, device=like.device, dtype=like.dtype)
        counter, allocations = _flop_counter(), _Allocations()
        with counter, allocations:
            run(x)
        x.requires_grad_()
        saved = _Saved([x, *own.values()])
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(saved.pack, _identity):
            # The result has to live until the end: with it go the saved tensors.
            result = checkpoint(run, x, use_reentrant=False) if with_cp else run(x)
        kept = saved.total()
        del result
    return ExecutedCost(params, counter.get_total_flops() // 2, allocations.total, kept, fake)


class _Allocations(TorchDispatchMode):
    """Adds up the storages that operators return and were not given."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = {
            _storage(item)._cdata
            for item in tree_leaves((args, kwargs))
            if isinstance(item, Tensor)
        }
        made = {
            _storage(item)._cdata: _storage(item).nbytes()
            for item in tree_leaves(result)
            if isinstance(item, Tensor)
        }
        self.total += sum(size for key, size in made.items() if key not in given)
        return result


class _Saved:
    """Collects the storages that autograd saves, other than those of ``known`` tensors."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        self._known = {_storage(tensor)._cdata for tensor in known}
        self._storages: dict[int, torch.UntypedStorage] = {}

    def pack(self, tensor: Tensor) -> Tensor:
        storage = _storage(tensor)
        if storage._cdata not in self._known:
            self._storages[storage._cdata] = storage  # held, or its address would be used again
        return tensor

    def total(self) -> int:
        return sum(storage.nbytes() for storage in self._storages.values())


def _identity(tensor: Tensor) -> Tensor:
    return tensor


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def _flop_counter() -> FlopCounterMode:
    # torch counts the fused attention of GPUs by itself, but not the one that CPUs have.
    aten = torch.ops.aten
    return FlopCounterMode(
        display=False,
        custom_mapping={aten._scaled_dot_product_flash_attention_for_cpu: _fused_attention},
    )


def _fused_attention(
    query: Sequence[int],
    key: Sequence[int],
    value: Sequence[int],
    *args: Any,
    out_shape: Any = None,
    **kwargs: Any,
) -> int:
    return sdpa_flop_count(query, key, value)


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Run what is inside in eval mode and without gradients, on operators that can be seen."""
    fastpath = torch.backends.mha.get_fastpath_enabled()
    try:
        # In eval mode torch runs nn.MultiheadAttention as one operator, in which nothing is seen.
        torch.backends.mha.set_fastpath_enabled(False)
        with inference_mode_of(module):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
