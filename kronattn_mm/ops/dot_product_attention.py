"""Dot-product attention, the quadratic operator that the other operators are measured against.

Paper: "Efficient Attention: Attention with Linear Complexities" (arXiv 1812.01243), section 3.1,
equations 1 and 2; the same operator is equation 1 of "Kronecker Attention Networks"
(arXiv 2007.08442). There is no 1/sqrt(d_k) in either.

Cost, multiply-accumulates: m n (d_k + d_v). Memory: the similarities, m n; in inference on a CPU
no more than some megabytes of them.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .backend import backend
from .checks import check_attention_inputs, eager_on_cpu, in_graph, needs_gradient, without_autocast

# Similarities of more bytes than the first are computed in blocks of the second, which stays in
# cores' own caches; below, several small products cost more than they save.
_SPLIT_BYTES = 1 << 22
_BLOCK_BYTES = 1 << 20


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
        if dtype in (torch.float16, torch.bfloat16):
            query, key, value = query.float(), key.float(), value.float()
        if normalization == 'scaling':
            scale = key.shape[-1] ** -0.5  # not math.sqrt, which would fix n in an exported graph
            query, key = query * scale, key * scale
        if coefficient_transform is None and _in_turns(query, key, value):
            return _attend_in_turns(query, key, value, normalization).to(dtype)
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
    """Say whether the queries are to be taken in turns, which changes no result.

    Training keeps the similarities for its backward pass, so that turns would save nothing.
    """
    return (
        not in_graph()
        and _bytes_of_one_query(query, key) * query.shape[-1] > _SPLIT_BYTES
        and not needs_gradient(query, key, value)
        and backend() != 'reference'
        and eager_on_cpu(query, key, value)
    )


def _attend_in_turns(query: Tensor, key: Tensor, value: Tensor, normalization: str) -> Tensor:
    """Take some queries at a time, with one piece of memory for the similarities of all turns.

    Getting fresh memory for all of them takes longer than computing them.
    """
    leading, channels, queries = query.shape[:-2], value.shape[-2], query.shape[-1]
    at_once = min(max(16, _BLOCK_BYTES // _bytes_of_one_query(query, key)), queries)
    query, key, value = (tensor.reshape(-1, *tensor.shape[-2:]) for tensor in (query, key, value))
    batch, _, keys = key.shape
    out = query.new_empty(batch, channels, queries)
    memory = query.new_empty(batch * at_once * keys)
    for part, columns in zip(query.split(at_once, dim=-1), out.split(at_once, dim=-1), strict=True):
        similarity = memory[: batch * part.shape[-1] * keys].view(batch, -1, keys)
        torch.bmm(part.mT, key, out=similarity)
        if normalization == 'softmax':
            torch.softmax(similarity, dim=-1, out=similarity)
        # Copied, because the product itself is slow at writing between other columns.
        columns.copy_(torch.bmm(value, similarity.mT))
    return out.reshape(*leading, channels, queries)


def _bytes_of_one_query(query: Tensor, key: Tensor) -> int:
    return math.prod(query.shape[:-2]) * key.shape[-1] * query.element_size()
