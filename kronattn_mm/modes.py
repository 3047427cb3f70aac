"""Run a module as in inference and leave it as it was."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


@contextlib.contextmanager
def inference_mode_of(module: nn.Module) -> Iterator[None]:
    """Put ``module`` into eval mode without gradients, and each training flag back afterwards.

    The flags are set one by one: ``train()`` of a backbone may leave frozen parts in eval mode.
    """
    training = {child: child.training for child in module.modules()}
    try:
        module.eval()
        with torch.no_grad():
            yield
    finally:
        for child, mode in training.items():
            child.training = mode
