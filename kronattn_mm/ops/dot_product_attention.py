"""Dot-product attention, the quadratic operator that the other operators are measured against.

Paper: "Efficient Attention: Attention with Linear Complexities" (arXiv 1812.01243), section 3.1,
equations 1 and 2; the same operator is equation 1 of "Kronecker Attention Networks"
(arXiv 2007.08442). There is no 1/sqrt(d_k) in either.

Cost, multiply-accumulates: m n (d_k + d_v). Memory: the similarities, m n; on a CPU two megabytes
of them a thread at a time, which the backward pass forms anew (m n d_k more).
``use_backend('reference')`` keeps all of them.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .backend import backend
from .checks import (
    HALF_PRECISION,
    check_attention_inputs,
    eager_on_cpu,
    in_graph,
    needs_gradient,
    without_autocast,
)

# Similarities that a thread works on at a time, in bytes: much less than a core's share of the last
# cache, and enough for products to be worth their calls.
_BLOCK_BYTES = 1 << 21
_MOST_THREADS = 8


def dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    normalization: str = 'softmax',
    coefficient_transform: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Let every query position gather the values, weighted by its similarity with every key.

    The paper keeps tokens in rows, ``D = rho(Q K^T) V``; here they are in the last dimension, as a
    convolution leaves them, so the same product reads ``V rho(Q^T K)^T``.

    Args:
        query (Tensor): Queries, ``(..., d_k, m)``. Leading dimensions are batch and heads.
        key (Tensor): Keys, ``(..., d_k, n)``.
        value (Tensor): Values, ``(..., d_v, n)``.
        normalization (str): ``'softmax'`` makes each query's similarities sum to one over the
            ``n`` positions; ``'scaling'`` divides them by ``n``. Defaults to ``'softmax'``.
        coefficient_transform (Callable, optional): Applied to the similarities
            ``(..., m, n)`` before they are normalised; must keep their shape. The Kronecker
            attention paper has a batch norm there.

    Returns:
        Tensor: Attended values, ``(..., d_v, m)``, in the inputs' dtype. Half-precision inputs are
        summed in float32.

    Raises:
        TypeError: If an input is not a floating-point tensor or the dtypes differ.
        ValueError: If the shapes do not fit or ``normalization`` is unknown.
    """
    check_attention_inputs(query, key, value, normalization)
    dtype = query.dtype
    with without_autocast(query):
        if dtype in HALF_PRECISION:
            query, key, value = query.float(), key.float(), value.float()
        if normalization == 'scaling':
            scale = key.shape[-1] ** -0.5  # not math.sqrt, which would fix n in an exported graph
            query, key = query * scale, key * scale
        if coefficient_transform is None and _in_turns(query, key, value):
            flat = [part.reshape(-1, *part.shape[-2:]) for part in (query, key, value)]
            run = _InTurns.apply if needs_gradient(*flat) else _attend_in_turns
            out = run(*flat, normalization).unflatten(0, query.shape[:-2] or (1,))
            return (out if query.dim() > 2 else out[0]).to(dtype)
        return _attend(query, key, value, normalization, coefficient_transform).to(dtype)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    normalization: str,
    coefficient_transform: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    # Without heads this is what matmul comes to, and small maps feel how it gets there.
    product = torch.bmm if query.dim() == 3 else torch.matmul
    similarity = product(query.mT, key)
    if coefficient_transform is not None:
        similarity = coefficient_transform(similarity)
    if normalization == 'softmax':
        similarity = similarity.softmax(dim=-1)
    return product(value, similarity.mT)


def _in_turns(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Say whether the queries are to be taken in turns, which changes no result."""
    return (
        not in_graph()
        and math.prod(query.shape[:-2]) * query.shape[-1] * key.shape[-1] * query.element_size()
        > _bytes_at_once()
        and backend() != 'reference'
        and eager_on_cpu(query, key, value)
    )


def _bytes_at_once() -> int:
    return _BLOCK_BYTES * min(torch.get_num_threads(), _MOST_THREADS)


class _InTurns(torch.autograd.Function):
    """Keeps the inputs for backward, and forms the similarities of each turn anew."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, normalization: str) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.normalization = normalization
        return _attend_in_turns(query, key, value, normalization)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of gradients, by the form that autograd knows
            out = _attend(*inputs, ctx.normalization, None)
            wanted = [tensor for tensor in inputs if tensor.requires_grad]
            found = iter(torch.autograd.grad(out, wanted, gradient, create_graph=True))
            return *(next(found) if tensor.requires_grad else None for tensor in inputs), None
        return *_backward_in_turns(*inputs, gradient, ctx.normalization), None


def _turns(
    query: Tensor, key: Tensor, normalization: str
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Some queries at a time: which, their normalised similarities, and memory of that size.

    The memory, ``(N, queries, n)``, is the same in all turns: getting fresh memory for all
    similarities takes longer than computing them.
    """
    batch, keys, queries = key.shape[0], key.shape[-1], query.shape[-1]
    at_once = min(max(16, _bytes_at_once() // (batch * keys * query.element_size())), queries)
    memory = query.new_empty(2, batch * at_once * keys)
    for start in range(0, queries, at_once):
        part = slice(start, min(start + at_once, queries))
        size = part.stop - part.start
        similarity, spare = memory[:, : batch * size * keys].unflatten(1, (batch, size, keys))
        torch.bmm(query[..., part].mT, key, out=similarity)
        if normalization == 'softmax':  # in place it would take half as long again
            torch.softmax(similarity, dim=-1, out=spare)
            similarity, spare = spare, similarity
        yield part, similarity, spare


def _attend_in_turns(query: Tensor, key: Tensor, value: Tensor, normalization: str) -> Tensor:
    out = query.new_empty(*value.shape[:2], query.shape[-1])
    for part, similarity, _ in _turns(query, key, normalization):
        # Copied, because the product itself is slow at writing between other columns.
        out[..., part] = torch.bmm(value, similarity.mT)
    return out


def _backward_in_turns(
    query: Tensor, key: Tensor, value: Tensor, gradient: Tensor, normalization: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value: S are the normalised similarities, O the output.

    dV = dO S,  dS = dO^T V,  dA = S (dS - sum over keys of S dS),  dQ = K dA^T,  dK = Q dA
    """
    d_query = query.new_empty(query.shape)
    d_key, d_value = key.new_zeros(key.shape), value.new_zeros(value.shape)
    for part, similarity, d_similarity in _turns(query, key, normalization):
        of_turn = gradient[..., part]
        d_value.baddbmm_(of_turn, similarity)
        torch.bmm(of_turn.mT, value, out=d_similarity)
        if normalization == 'softmax':
            d_similarity.mul_(similarity)
            d_similarity.addcmul_(similarity, d_similarity.sum(-1, keepdim=True), value=-1)
        d_query[..., part] = torch.bmm(key, d_similarity.mT)
        d_key.baddbmm_(query[..., part], d_similarity)
    return d_query, d_key, d_value
