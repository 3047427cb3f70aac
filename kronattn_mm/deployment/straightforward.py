"""Every layer once more, written as the papers write it, to hold the other forms against.

Whole matrices of coefficients, one head after the other, weights read from the layer and its own
code not called: slow, and without any of the rearrangements that the layers have. The references of
the tests go further, loop by loop in numpy; these are vectorised so that a user can run them too.

Papers: efficient attention (arXiv 1812.01243) equations 2 to 4 and section 3.2; Kronecker attention
(arXiv 2007.08442) equations 1 and 14 to 18; Shift-and-Balance (arXiv 2103.13080) equations 1, 2, 6
and 7; dynamic convolution (arXiv 1912.03458); CondConv (arXiv 1904.04971); CGNL (arXiv 1810.13125)
and LatentGNN (arXiv 1905.11634), with what their authors' code adds.

A new layer is one more small function here; without one, :func:`straightforward` says so.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

Form = Callable[[nn.Module, Tensor], Tensor]
FORMS: dict[str, Form] = {}


def form_of(*names: str) -> Callable[[Form], Form]:
    """Make a form known for layers of these names."""

    def register(form: Form) -> Form:
        FORMS.update(dict.fromkeys(names, form))
        return form

    return register


def straightforward(layer: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """Return the straightforward form of a layer, None if there is none for its class."""
    form = FORMS.get(type(layer).__name__)
    return None if form is None else lambda x: form(layer, x)


@form_of('EfficientAttention1d', 'EfficientAttention2d', 'EfficientAttention3d')
def _efficient(layer: nn.Module, x: Tensor) -> Tensor:
    tokens = x.flatten(2).transpose(1, 2)
    query, key, value = (
        _project(conv, tokens) for conv in (layer.queries, layer.keys, layer.values)
    )
    heads = []
    for q, k, v in _heads(layer, query, key, value):
        n = k.shape[1]
        if layer.normalization == 'softmax':
            q, k = q.softmax(2), k.softmax(1)
        else:
            q, k = q / n**0.5, k / n**0.5
        heads.append(q @ (k.transpose(1, 2) @ v))
    return x + _as_map(_project(layer.reprojection, torch.cat(heads, 2)), x)


@form_of('RegularAttention2d')
def _regular(layer: nn.Module, x: Tensor) -> Tensor:
    pool = _pooled if layer.pooling else lambda image: image
    query = _project(layer.queries, _tokens(x))
    key, value = (
        _tokens(pool(_as_map(_project(conv, _tokens(x)), x))) for conv in (layer.keys, layer.values)
    )
    heads = []
    for q, k, v in _heads(layer, query, key, value):
        similarity = q @ k.transpose(1, 2)
        softmax = layer.normalization == 'softmax'
        heads.append((similarity.softmax(2) if softmax else similarity / k.shape[1]) @ v)
    return x + _as_map(_project(layer.reprojection, torch.cat(heads, 2)), x)


@form_of('UnfoldedAttention2d')
def _unfolded(layer: nn.Module, x: Tensor) -> Tensor:
    memory = _tokens(_pooled(x) if layer.pooling else x)
    out = _as_map(_attended(layer, _tokens(x), memory), x)
    return x + out if layer.residual else out


@form_of('KroneckerAttention2d', 'KroneckerAttention3d')
def _kronecker(layer: nn.Module, x: Tensor) -> Tensor:
    axes = range(2, x.dim())
    averages = torch.cat(
        [x.movedim(axis, 2).flatten(3).mean(3) for axis in reversed(axes)], 2
    ).transpose(1, 2)
    if layer.mode == 'kv':
        out = _as_map(_attended(layer, _tokens(x), averages), x)
        return x + out if layer.residual else out
    vectors = _attended(layer, averages, averages).transpose(1, 2)
    out = x.new_zeros(x.shape[0], vectors.shape[1], *x.shape[2:])
    start = 0
    for axis in reversed(axes):
        size = x.shape[axis]
        block = vectors[:, :, start : start + size]
        out = (out.movedim(axis, -1) + _spread(block, out.dim())).movedim(-1, axis)
        start += size
    return x + out if layer.residual else out


@form_of('CGNL2d')
def _compact_non_local(layer: nn.Module, x: Tensor) -> Tensor:
    query, key, value = (
        _grouped(conv, x, 1).flatten(2).unflatten(1, (layer.groups, -1)).flatten(2)
        for conv in (layer.queries, layer.keys, layer.values)
    )
    if layer.scale:
        value = value / value.shape[2] ** 0.5
    # Every value of a group with every other: a matrix of (c n) x (c n).
    products = query[..., :, None] * key[..., None, :]
    if layer.order is None:
        similarity = products
    else:
        similarity = sum(
            math.exp(-2 * layer.gamma)
            * (2 * layer.gamma) ** power
            / math.factorial(power)
            * products**power
            for power in range(layer.order + 1)
        )
    out = torch.einsum('ngij,ngj->ngi', similarity, value)
    out = _grouped(layer.reprojection, out.reshape(x.shape[0], -1, *x.shape[2:]), layer.groups)
    groups = out.unflatten(1, (layer.groups, -1))
    variance, mean = torch.var_mean(groups, (2, 3, 4), correction=0, keepdim=True)
    normal = ((groups - mean) / (variance + layer.norm.eps).sqrt()).flatten(1, 2)
    return x + normal * layer.norm.weight[:, None, None] + layer.norm.bias[:, None, None]


@form_of('LatentGNN2d')
def _latent_graph(layer: nn.Module, x: Tensor) -> Tensor:
    def assigned(down: nn.Module, psi: Iterable[nn.Module]) -> tuple[Tensor, list[Tensor]]:
        features = _conv_and_norm(down, x)
        features = _unit(features, 1)
        return features, [_conv_and_norm(part, features).clamp(min=0) for part in psi]

    features, giving = assigned(layer.down_v2l, layer.psi_v2l)
    taking = giving
    if layer.psi_l2v is not None:
        _, taking = assigned(layer.down_l2v, layer.psi_l2v)
    messages = []
    for give, take in zip(giving, taking, strict=True):
        take = _unit(take.flatten(2), 1)
        give = take if layer.psi_l2v is None else _unit(give.flatten(2), 2)
        nodes = give @ features.flatten(2).transpose(1, 2)
        unit = _unit(nodes, 2)
        nodes = (unit @ unit.transpose(1, 2)).softmax(2) @ nodes
        messages.append(nodes.transpose(1, 2) @ take)
    messages = torch.cat(messages, 1).unflatten(2, x.shape[2:])
    return x + layer.gamma * _conv_and_norm(layer.up, messages)


@form_of('ShiftBalanceConv2d')
def _shift_balance_conv(layer: nn.Module, x: Tensor) -> Tensor:
    shift = layer.attention.lambda_ * _branch(layer.attention, x)
    return _convolution(layer, x, layer.weight, layer.bias) + shift[:, :, None, None]


@form_of('ShiftBalance2d')
def _shift_balance(layer: nn.Module, x: Tensor) -> Tensor:
    return x + (layer.lambda_ * _branch(layer, x))[:, :, None, None]


@form_of('SqueezeExciteConv2d')
def _squeeze_excite_conv(layer: nn.Module, x: Tensor) -> Tensor:
    trunk = _convolution(layer, x, layer.weight, layer.bias)
    return trunk * _branch(layer.attention, x)[:, :, None, None]


@form_of('SqueezeExcite2d')
def _squeeze_excite(layer: nn.Module, x: Tensor) -> Tensor:
    return x * _branch(layer, x)[:, :, None, None]


@form_of('DynamicConv2d')
def _dynamic(layer: nn.Module, x: Tensor) -> Tensor:
    attention = layer.attention
    hidden = (x.mean((2, 3)) @ attention.fc1.weight.T).relu()
    scores = hidden @ attention.fc2.weight.T + attention.fc2.bias
    return _mixed(layer, x, (scores / attention.temperature).softmax(1))


@form_of('CondConv2d')
def _cond_conv(layer: nn.Module, x: Tensor) -> Tensor:
    fc = layer.attention.fc
    return _mixed(layer, x, (x.mean((2, 3)) @ fc.weight.T + fc.bias).sigmoid())


def _mixed(layer: nn.Module, x: Tensor, shares: Tensor) -> Tensor:
    """Each image convolved by itself, with the kernel that its shares mix."""
    convs = (layer, *layer.attention.kernels)
    images = []
    for image, share in zip(x, shares, strict=True):
        weight = sum(part * conv.weight for part, conv in zip(share, convs, strict=True))
        bias = None
        if layer.bias is not None:
            bias = sum(part * conv.bias for part, conv in zip(share, convs, strict=True))
        images.append(_convolution(layer, image[None], weight, bias))
    return torch.cat(images)


def _branch(branch: nn.Module, x: Tensor) -> Tensor:
    """The attention branch in inference: average, two layers with norms, gate."""

    def normalized(norm: nn.Module, z: Tensor) -> Tensor:
        if isinstance(norm, _BatchNorm):
            z = (z - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
        elif isinstance(norm, nn.LayerNorm):
            variance, mean = torch.var_mean(z, 1, correction=0, keepdim=True)
            z = (z - mean) / (variance + norm.eps).sqrt()
        else:
            return z
        return z * norm.weight + norm.bias

    def linear(layer: nn.Linear, z: Tensor) -> Tensor:
        return z @ layer.weight.T + (0 if layer.bias is None else layer.bias)

    hidden = normalized(branch.norm1, linear(branch.fc1, x.flatten(2).mean(2))).clamp(min=0)
    z = normalized(branch.norm2, linear(branch.fc2, hidden))
    if branch.gate == 'softmax':
        return z.exp() / z.exp().sum(1, keepdim=True)
    return z if branch.gate is None else getattr(torch, branch.gate)(z)


def _attended(layer: nn.Module, queries: Tensor, memory: Tensor) -> Tensor:
    """KAN paper, equation 1, with the transformations and the norm that the layer has."""
    query, key, value = (
        _project(child, rows)
        for child, rows in ((layer.queries, queries), (layer.keys, memory), (layer.values, memory))
    )
    coefficients = key @ query.transpose(1, 2)
    norm = layer.coefficient_norm
    if norm is not None:
        coefficients = (coefficients - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
        coefficients = coefficients * norm.weight + norm.bias
    return coefficients.softmax(1).transpose(1, 2) @ value


def _project(conv: nn.Module, rows: Tensor) -> Tensor:
    """A convolution of size 1, or nothing, on tokens in rows ``(N, n, C)``."""
    if isinstance(conv, nn.Identity):
        return rows
    return rows @ conv.weight.flatten(1).T + conv.bias


def _grouped(conv: nn.Conv2d, x: Tensor, groups: int) -> Tensor:
    """A convolution of size 1 without bias, group by group."""
    kernels = conv.weight.flatten(1).unflatten(0, (groups, -1))
    return torch.einsum('goc,ngchw->ngohw', kernels, x.unflatten(1, (groups, -1))).flatten(1, 2)


def _conv_and_norm(pair: nn.Sequential, x: Tensor) -> Tensor:
    """A convolution of size 1 and a batch norm in inference."""
    conv, norm = pair[0], pair[1]
    factor = norm.weight / (norm.running_var + norm.eps).sqrt()
    offset = norm.bias - norm.running_mean * factor
    return _grouped(conv, x, 1) * factor[:, None, None] + offset[:, None, None]


def _unit(x: Tensor, axis: int) -> Tensor:
    """L2 norm 1 along an axis; where a ReLU let nothing pass, zero stays zero."""
    return x / x.pow(2).sum(axis, keepdim=True).sqrt().clamp(min=1e-12)


def _heads(layer: nn.Module, *parts: Tensor) -> list[tuple[Tensor, ...]]:
    return list(zip(*(part.chunk(layer.num_heads, 2) for part in parts), strict=True))


def _tokens(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)


def _as_map(rows: Tensor, x: Tensor) -> Tensor:
    return rows.transpose(1, 2).reshape(x.shape[0], -1, *x.shape[2:])


def _spread(block: Tensor, dims: int) -> Tensor:
    """``(N, C, size)`` with ones between, for a sum whose last axis has that size."""
    return block.reshape(*block.shape[:2], *[1] * (dims - 3), block.shape[2])


def _pooled(x: Tensor) -> Tensor:
    """Maximum of 2 x 2; what sticks out counts by itself."""
    padded = functional.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2), value=float('-inf'))
    return padded.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).amax((3, 5))


def _convolution(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution with zeros around, as a product with the patches of the image."""
    patches = functional.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    groups = patches.unflatten(1, (layer.groups, -1))
    kernels = weight.reshape(layer.groups, layer.out_channels // layer.groups, -1)
    out = torch.einsum('gok,ngkp->ngop', kernels, groups).flatten(1, 2)
    height, width = (
        (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for size, padding, dilation, kernel, stride in zip(
            x.shape[2:], layer.padding, layer.dilation, layer.kernel_size, layer.stride, strict=True
        )
    )
    out = out.unflatten(2, (height, width))
    return out if bias is None else out + bias[:, None, None]
