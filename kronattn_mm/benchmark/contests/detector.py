"""A training step of the efficient-attention paper's detector with its insertions and without.

Mask R-CNN, ResNet-50, FPN, attention at res3-4+fpn1-5 (paper, table 3: +5.3 % computation). One
step is what a runner does for a batch of one picture of 320 x 320: losses of all heads, gradients,
SGD. Both networks have the same weights where they have the same layers.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...cost.config import load_model
from ...plugging import unplug
from ..contest import Bar, Contest, Contestant, Entry

_CONFIG = 'kronattn_mm::efficient_attention/mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco.py'
_SIDE = 320
_WITH, _WITHOUT = 'with 7 layers of EA', 'without'


def training_step(model: nn.Module, side: int) -> Callable[[], Any]:
    """Return a function that does one training step of a two-stage detector.

    Args:
        model (nn.Module): An mmdet detector with masks.
        side (int): Height and width of its one picture, in pixels.
    """
    from mmdet.testing import demo_mm_inputs

    data = demo_mm_inputs(1, [(3, side, side)], num_items=[8], num_classes=80, with_mask=True)
    model.train()
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    device = weights[0].device
    # So small that the heads see much the same proposals at each step.
    optimizer = torch.optim.SGD(weights, lr=1e-6, momentum=0.9)
    inputs = model.data_preprocessor(data, training=True)

    def step() -> None:
        with torch.random.fork_rng([device] if device.type == 'cuda' else []):
            torch.manual_seed(0)  # the same sample of anchors and proposals
            losses = model.loss(inputs['inputs'], inputs['data_samples'])
        model.parse_losses(losses)[0].backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _enter(device: str) -> Entry:
    torch.manual_seed(0)
    attended = load_model(_CONFIG)[0].to(device)
    plain = unplug(copy.deepcopy(attended))
    return Entry(
        [
            Contestant(_WITHOUT, training_step(plain, _SIDE), tuple(plain.parameters())),
            Contestant(_WITH, training_step(attended, _SIDE), tuple(attended.parameters())),
        ]
    )


DETECTOR = (
    Contest(
        'mask-rcnn-training',
        f'Mask R-CNN R-50 FPN, training step, {_SIDE} x {_SIDE}',
        _enter,
        (
            Bar(
                'Mask R-CNN step with EA at res3-4+fpn1-5 over without',
                _WITH,
                _WITHOUT,
                1.10,
                1.07,
                at_least=False,
            ),
        ),
        all_allocators=False,  # what attention asks for is little beside the rest
    ),
)
