"""The four modules of KANet against the text of the paper's section 3.5."""

import copy
import pickle
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

pytest.importorskip('mmcv')

from kronattn_mm.models.backbones.kanet import KAO_KV
from kronattn_mm.models.backbones.kanet_modules import (
    MODULES,
    AttnModule,
    AttnSkipModule,
    BaseModule,
    BaseSkipModule,
)

ATTENTIONS = {
    'kv': KAO_KV,
    'qkv': dict(KAO_KV, mode='qkv'),
    'regular': dict(type='kronattn_mm.UnfoldedAttention2d', transforms='v', residual=False),
    'pooled': dict(
        type='kronattn_mm.UnfoldedAttention2d', transforms='v', residual=False, pooling=True
    ),
    'efficient': dict(type='kronattn_mm.EfficientAttention2d', key_channels=4, value_channels=4),
}


class Double(nn.Module):
    """In place of attention, so that its path can be seen: twice the input."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def build(kind: type[BaseModule], *arguments, attention: dict | None = None, **more) -> BaseModule:
    if kind.uses_attention and attention is None:
        attention = KAO_KV
    return kind(*arguments, attention=attention, **more)


def convolution_weights(module: nn.Module) -> int:
    """Weights without batch norms and biases, as the paper counts."""
    return sum(
        part.weight.numel() for part in module.modules() if isinstance(part, (nn.Conv1d, nn.Conv2d))
    )


@pytest.mark.parametrize(('c', 'd', 'stride', 'r'), [(8, 8, 1, 6), (16, 24, 2, 6), (5, 7, 1, 3)])
def test_parameters_as_the_paper_counts_them(c: int, d: int, stride: int, r: int) -> None:
    base, skip, attn, attn_skip = (
        convolution_weights(build(kind, c, d, stride, r)) for kind in MODULES.values()
    )
    assert base == r * c * c + 9 * r * c + r * c * d
    assert base - skip == c * c
    assert base - attn == 9 * c
    assert attn_skip == attn


@pytest.mark.parametrize('attention', ATTENTIONS, ids=str)
def test_any_attention_at_any_size(attention: str) -> None:
    module = AttnSkipModule(6, 10, 1, 3, ATTENTIONS[attention])
    for shape in ((1, 1), (1, 7), (7, 1), (5, 8)):
        assert module(torch.randn(2, 6, *shape)).shape == (2, 10, *shape)


@pytest.mark.parametrize('kind', MODULES.values(), ids=MODULES)
def test_stride_2_halves_every_size_like_a_convolution(kind: type[BaseModule]) -> None:
    module = build(kind, 4, 6, 2, 2).eval()
    convolution = nn.Conv2d(4, 1, 3, stride=2, padding=1)
    for height in range(1, 10):
        for width in range(1, 10):
            x = torch.randn(1, 4, height, width)
            assert module(x).shape[2:] == convolution(x).shape[2:], (height, width)


def test_pooling_averages_what_is_there() -> None:
    pool = AttnModule(4, 6, 2, 2, KAO_KV).pool
    for height in range(1, 8):
        for width in range(1, 8):
            constant = torch.full((1, 4, height, width), 3.0)
            assert torch.equal(pool(constant), torch.full_like(pool(constant), 3.0))
    x = torch.randn(1, 4, 6, 4)
    assert torch.equal(pool(x), F.avg_pool2d(x, 2))


@pytest.mark.parametrize('stride', [1, 2])
@pytest.mark.parametrize('kind', MODULES.values(), ids=MODULES)
def test_forward_step_by_step(kind: type[BaseModule], stride: int) -> None:
    """Each module written out with its own convolutions, from the text."""
    c, r = 6, 3
    module = build(
        kind, c, c, stride, r, attention=dict(type=Double) if kind.uses_attention else None
    ).eval()
    x = torch.randn(2, c, 8, 6)
    made = module.expand_conv(x)
    if kind is BaseModule:
        assert made.shape[1] == r * c
        hidden = module.depthwise_conv(made)
    else:
        assert made.shape[1] == (r - 1) * c
    if kind is BaseSkipModule:
        hidden = module.depthwise_conv(torch.cat([made, x], dim=1))
    if kind in (AttnModule, AttnSkipModule):
        attended = 2 * x
        if kind is AttnSkipModule and stride == 1:
            attended = attended + x
        if stride == 2:
            attended = F.avg_pool2d(attended, 2)
        hidden = torch.cat([module.depthwise_conv(made), attended], dim=1)
    assert hidden.shape[1] == r * c
    wanted = module.linear_conv(hidden)
    if stride == 1:
        wanted = wanted + x
    torch.testing.assert_close(module(x), wanted)


def test_residual_needs_the_same_shape() -> None:
    for c, d, stride, wanted in ((4, 4, 1, True), (4, 4, 2, False), (4, 6, 1, False)):
        assert BaseModule(c, d, stride, 2).with_residual is wanted


@pytest.mark.parametrize('kind', MODULES.values(), ids=MODULES)
def test_every_parameter_gets_a_gradient_and_recomputing_gives_the_same(
    kind: type[BaseModule],
) -> None:
    module = build(kind, 6, 6, 1, 3)
    recomputed = copy.deepcopy(module)
    recomputed.with_cp = True
    x = torch.randn(4, 6, 5, 7)
    weights = torch.randn(4, 6, 5, 7)
    gradients = []
    for each in (module, recomputed):
        inputs = x.clone().requires_grad_()
        (each(inputs) * weights).sum().backward()
        found = {name: parameter.grad for name, parameter in each.named_parameters()}
        # A constant added to all coefficients changes no softmax.
        assert all(
            gradient is not None
            and (gradient.abs().max() > 0 or name == 'attention.coefficient_norm.bias')
            for name, gradient in found.items()
        ), found
        gradients.append({**found, 'x': inputs.grad})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


@pytest.mark.parametrize('kind', MODULES.values(), ids=MODULES)
def test_copies_are_independent(kind: type[BaseModule]) -> None:
    module = build(kind, 4, 4, 1, 3).eval()
    x = torch.randn(1, 4, 5, 6)
    wanted = module(x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), wanted)
        for parameter in other.parameters():
            parameter.data.zero_()
        assert torch.equal(module(x), wanted)


@pytest.mark.parametrize(
    ('kind', 'arguments', 'message'),
    [
        (BaseModule, dict(stride=3), 'stride must be 1 or 2, got 3'),
        (BaseModule, dict(expansion=0), 'expansion must be at least 1, got 0'),
        (BaseModule, dict(in_channels=0), 'in_channels must be at least 1, got 0'),
        (BaseModule, dict(attention=KAO_KV), 'BaseModule has no attention, got attention={'),
        (AttnModule, dict(), 'AttnModule needs attention, got attention=None'),
        (
            BaseSkipModule,
            dict(expansion=1),
            'BaseSkipModule needs an expansion of at least 2, got 1',
        ),
        (AttnSkipModule, dict(expansion=1, attention=KAO_KV), 'AttnSkipModule needs an expansion'),
        (
            AttnModule,
            dict(attention=dict(type='kronattn_mm.KroneckerAtention2d')),
            "did you mean 'kronattn_mm.KroneckerAttention2d'",
        ),
    ],
)
def test_bad_arguments(kind: type[BaseModule], arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        kind(**{'in_channels': 4, 'out_channels': 4, **arguments})


def test_unknown_argument_of_the_attention_is_named() -> None:
    with pytest.raises(TypeError, match="no argument 'mod', did you mean 'mode'"):
        AttnModule(4, 4, attention=dict(type='kronattn_mm.KroneckerAttention2d', mod='kv'))
