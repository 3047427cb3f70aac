"""The kernels tried once on a small map, before backend ``auto`` relies on them.

Triton builds a launcher with the machine's C compiler and needs a driver that knows what it
generates; a machine without them should train on, by the torch form. So does one where the kernels
compute something else: each trial is compared with the torch form in float64.
"""

import functools
import logging

import torch
from torch import Tensor

from ..projections import Projections
from ..regrouped import regrouped_attention
from .block import block

# Relative to the largest number of a result. Rounding stays far below; a wrong kernel does not.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@functools.cache
def fault(device: torch.device, dtype: torch.dtype, backward: bool) -> str | None:
    """Try the kernels on a device; the answer is kept for the process, a fault is logged.

    Args:
        device (torch.device): Where.
        dtype (torch.dtype): The compute dtype of the products.
        backward (bool): Try the backward pass as well.

    Returns:
        str | None: What went wrong, None if nothing did.
    """
    try:
        differing = _differing(device, dtype, backward)
    except Exception as error:  # whatever a compiler, a driver or a launcher may raise
        reason = f'its kernels fail on {device}: {type(error).__name__}: {error}'
    else:
        if not differing:
            return None
        reason = f'its kernels compute something else on {device} ({", ".join(differing)})'
    reason = f'{reason}; set KRONATTN_BACKEND=torch to try no more'
    logging.getLogger('kronattn_mm').warning('Triton is left out: %s', reason)
    return reason


def _differing(device: torch.device, dtype: torch.dtype, backward: bool) -> list[str]:
    """Names of the results that differ from the torch form's."""
    with (
        torch.inference_mode(False),
        torch.set_grad_enabled(backward),
        torch.autocast(device.type, enabled=False),
    ):
        # no random numbers: the program's own must not depend on a trial
        numbers = torch.arange(3300, device=device, dtype=torch.float64).sin()
        sizes = {
            'input': (2, 20, 5, 9),
            'keys': (16, 20),
            'key_bias': (16,),
            'queries': (16, 20),
            'query_bias': (16,),
            'values': (8, 20),
            'value_bias': (8,),
            'reprojection': (20, 8),
            'reprojection_bias': (20,),
        }
        pieces, first = [], 0
        for size in sizes.values():
            count = torch.Size(size).numel()
            # representable in the compute dtype, so that both forms begin with the same numbers
            pieces.append(numbers[first : first + count].reshape(size).to(dtype).double())
            first += count
        ours = [piece.to(dtype).requires_grad_(backward) for piece in pieces]
        theirs = [piece.requires_grad_(backward) for piece in pieces]
        actual = [block(ours[0], Projections(*ours[1:]), 2, 'softmax', dtype)]
        wanted = [regrouped_attention(theirs[0], Projections(*theirs[1:]), 2, 'softmax')]
        names = ['output']
        if backward:
            gradient = torch.cos(theirs[0].detach()).to(dtype)
            actual += torch.autograd.grad(actual[0], ours, gradient)
            # None: the bias of the keys, which cancels in the softmax
            grads = torch.autograd.grad(wanted[0], theirs, gradient.double(), allow_unused=True)
            wanted += [
                torch.zeros_like(tensor) if grad is None else grad
                for tensor, grad in zip(theirs, grads, strict=True)
            ]
            names += [f'gradient of {name}' for name in sizes]
        return [
            name
            for name, a, b in zip(names, actual, wanted, strict=True)
            if not _agree(a, b, _TOLERANCE[dtype])
        ]


def _agree(actual: Tensor, wanted: Tensor, tolerance: float) -> bool:
    # A gradient that cancels to zero (the keys' bias) is measured against one.
    scale = wanted.abs().max().clamp_min(1e-2)
    return bool((actual.double() - wanted).abs().max() <= tolerance * scale)
