"""The regrouped block on the whole map at once, for maps of few positions.

The groupings are those of :mod:`.regrouped`. Each is a few matrix products that autograd
differentiates; a small product costs a third of the 1 x 1 convolution that it stands for.

Memory kept for the backward pass: the two normalised maps, 2 d_k n, and with the groupings
``context`` and ``similarities`` also the values and what was attended, 2 d_v n.
"""

import torch
from torch import Tensor

from .projections import Projections, join_heads, split_heads


def whole_map_attention(
    x: Tensor, projections: Projections, num_heads: int, normalization: str, grouping: str
) -> Tensor:
    """Return x plus its reprojected efficient attention.

    Args:
        x (Tensor): Feature map, ``(N, d, *spatial)``.
        projections (Projections): Weights and biases.
        num_heads (int): Heads among which key and value channels are divided.
        normalization (str): ``'softmax'`` or ``'scaling'``.
        grouping (str): ``'context'``, ``'similarities'`` or ``'inputs'``.

    Returns:
        Tensor: Of the shape and memory format of ``x``.
    """
    tokens, softmax = x.flatten(2), normalization == 'softmax'
    # Under softmax the bias of the keys cancels; it is there so that it has a gradient, about zero.
    key = _project(projections.keys, tokens, projections.key_bias)
    query = _project(projections.queries, tokens, projections.query_bias)
    if softmax:
        key = key.softmax(2)
        if num_heads == 1:
            query = query.softmax(1)
        else:
            query = query.unflatten(1, (num_heads, -1)).softmax(2).flatten(1, 2)
    else:
        key = key / tokens.shape[2]  # both factors 1/sqrt(n)

    bias = projections.reprojection_bias
    if grouping == 'inputs':
        out = torch.baddbmm(tokens, _mixing(tokens, key, projections, num_heads, softmax), query)
        if softmax:  # what the queries weigh adds up to one: the bias of the values is left over
            bias = torch.addmv(bias, projections.reprojection, projections.value_bias)
    else:
        value = _project(projections.values, tokens, projections.value_bias)
        attended = _attend(query, key, value, num_heads, grouping)
        out = torch.baddbmm(tokens, _for_images(projections.reprojection, len(x)), attended)
    out = (out + bias[:, None] if out.requires_grad else out.add_(bias[:, None])).view(x.shape)
    return out if x.is_contiguous() else torch.empty_like(x).copy_(out)


def _mixing(
    tokens: Tensor, key: Tensor, projections: Projections, num_heads: int, softmax: bool
) -> Tensor:
    """Return M, ``(N, d, d_k)``; the bias of the values is in it only where it is not left over."""
    inputs = torch.bmm(tokens, key.transpose(1, 2))
    if num_heads == 1 and softmax:
        return _project(projections.reprojection, _project(projections.values, inputs))
    context = split_heads(projections.values, 0, num_heads) @ split_heads(inputs, 2, num_heads)
    if not softmax:
        sums = key.sum(2).unflatten(1, (num_heads, 1, -1))
        context = context + projections.value_bias.view(num_heads, -1, 1) * sums
    return join_heads(split_heads(projections.reprojection, 1, num_heads) @ context, 2)


def _attend(query: Tensor, key: Tensor, value: Tensor, num_heads: int, grouping: str) -> Tensor:
    """Return the attended values, ``(N, d_v, n)``."""
    # Heads are images to a product: (N, C, n) -> (N heads, C / heads, n).
    shape = value.shape
    query, key, value = (
        part if num_heads == 1 else part.unflatten(1, (num_heads, -1)).flatten(0, 1)
        for part in (query, key, value)
    )
    if grouping == 'context':
        attended = torch.bmm(torch.bmm(value, key.transpose(1, 2)), query)
    else:
        attended = torch.bmm(value, torch.bmm(key.transpose(1, 2), query))
    return attended.view(shape)


def _project(weight: Tensor, tokens: Tensor, bias: Tensor | None = None) -> Tensor:
    weight = _for_images(weight, len(tokens))
    if bias is None:
        return torch.bmm(weight, tokens)
    return torch.baddbmm(bias[:, None], weight, tokens)


def _for_images(weight: Tensor, images: int) -> Tensor:
    # The gradient of an expanded weight is summed up even where there is one image.
    return weight.unsqueeze(0) if images == 1 else weight.expand(images, -1, -1)
