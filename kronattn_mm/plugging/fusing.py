"""One convolution out of a convolution, its attention branch and the batch norm after them.

In inference a batch norm is a factor and an offset for each channel. The attended convolutions
take them into their weights without a change of the result (``fold_norm`` of each says how), and
mmcv's ``fuse_conv_bn`` does so for plain convolutions. That tool leaves attended convolutions alone
because they are no ``nn.Conv2d``; :func:`fused` here does both.
"""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..layers.attended_conv import BranchedConv
from ..layers.attention_branch import AttentionBranch
from ..layers.dynamic_conv import MixedConv
from ..modes import inference_mode_of


def fused(model: nn.Module, example: Tensor | None = None, tolerance: float = 1e-3) -> nn.Module:
    """Return a copy of ``model`` for inference with every batch norm folded that can be.

    Args:
        model (nn.Module): A module with or without attended convolutions.
        example (Tensor, optional): An input with which the outputs of both are compared. Norms
            are paired with the convolutions that are registered before them, as ``fuse_conv_bn``
            does; an example is the proof that the network calls them in that order.
        tolerance (float): Largest difference allowed, relative to the largest output. Defaults to
            1e-3.

    Returns:
        nn.Module: The copy, in eval mode. Its keys are other ones, and its layers can no longer
        be switched off or taken out.

    Raises:
        ImportError: If mmcv is not there.
        RuntimeError: If the outputs for the example differ.
        ValueError: If a convolution is switched off or scaled, which would be lost.
    """
    from mmcv.cnn import fuse_conv_bn

    copied = copy.deepcopy(model)
    copied.eval()  # not chained: some backbones return None
    _forget_switches(copied)
    with torch.no_grad():
        for parent, conv_name, norm_name in list(_attended_pairs(copied)):
            getattr(parent, conv_name).fold_norm(getattr(parent, norm_name))
            setattr(parent, norm_name, nn.Identity())
        for module in copied.modules():
            if isinstance(module, AttentionBranch):
                module.fold_norms()
    copied = fuse_conv_bn(copied)
    for parameter in copied.parameters():
        parameter.requires_grad_(False)
    if example is not None:
        _compare(model, copied, example, tolerance)
    return copied


def check_fusing_order(parent: nn.Module, name: str) -> None:
    """Refuse an attended convolution between a plain one and a batch norm.

    ``fuse_conv_bn`` does not see the attended convolution, and would take the norm for that of
    the plain convolution registered before it.

    Raises:
        ValueError: If the convolution ``name`` of ``parent`` lies so.
    """
    plain = None
    passed = False
    for child_name, child in parent.named_children():
        if child_name == name:
            if plain is None:
                return
            passed = True
        elif isinstance(child, _BatchNorm):
            if passed:
                raise ValueError(
                    f'{name!r} of {type(parent).__name__} lies between the convolution {plain!r} '
                    f'and the batch norm {child_name!r}, which fuse_conv_bn would then make one; '
                    f'replace {plain!r} as well'
                )
            plain = None
        elif isinstance(child, nn.Conv2d):
            if passed:
                return
            plain = child_name


def _attended_pairs(model: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """Each module with the names of an attended convolution in it and of the norm after that."""
    for parent in model.modules():
        waiting = None
        for name, child in parent.named_children():
            if isinstance(child, (BranchedConv, MixedConv)):
                waiting = name
            elif isinstance(child, nn.Conv2d):
                waiting = None
            elif isinstance(child, _BatchNorm) and waiting is not None:
                yield parent, waiting, name
                waiting = None


def _forget_switches(model: nn.Module) -> None:
    from .insertion import Insertions

    for container in model.modules():
        if not isinstance(container, Insertions):
            continue
        for path, replacement in container.replaced.items():
            if not replacement.enabled or replacement.scale != 1:
                raise ValueError(
                    f'the convolution {path!r} is switched off or scaled; switch it '
                    'on, or take it out with unplug, before fusing'
                )
        container.replaced.clear()


def _compare(model: nn.Module, copied: nn.Module, example: Tensor, tolerance: float) -> None:
    with inference_mode_of(model):
        before = _tensors(model(example))
        after = _tensors(copied(example))
    for number, (wanted, actual) in enumerate(zip(before, after, strict=True)):
        error = float((actual - wanted).abs().max() / wanted.abs().max().clamp(min=1e-12))
        if not error <= tolerance:
            raise RuntimeError(
                f'output {number} differs by {error:.2g} of its largest value after '
                'fusing; a norm is not called after the convolution before it'
            )


def _tensors(output: object) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    values = output.values() if isinstance(output, dict) else output
    return [tensor for value in values for tensor in _tensors(value)]
