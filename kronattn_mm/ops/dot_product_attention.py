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

from .checks import check_attention_inputs, without_autocast

# Similarities of more bytes than the first are computed in blocks of the second, which stays in a
# core's own cache; below, several small products cost more than they save.
_SPLIT_BYTES = 1 << 23
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
        block = query.shape[-1]
        if coefficient_transform is None and _may_split(query, key, value):
            block = _queries_at_once(query, key)
        parts = [
            _attend(part, key, value, normalization, coefficient_transform)
            for part in (query.split(block, dim=-1) if block < query.shape[-1] else [query])
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)).to(dtype)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    normalization: str,
    coefficient_transform: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    similarity = query.transpose(-2, -1) @ key
    if coefficient_transform is not None:
        similarity = coefficient_transform(similarity)
    if normalization == 'softmax':
        similarity = similarity.softmax(dim=-1)
    return value @ similarity.transpose(-2, -1)


def _may_split(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Say whether the queries may be taken in turns, which changes no result.

    On a CPU, inference spends more time on getting memory for large similarities than on computing
    them. Training keeps them for the backward pass anyway, and a graph should not hold a loop.
    """
    if query.device.type != 'cpu' or type(query) is not Tensor:
        return False
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    return not (
        torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    )


def _queries_at_once(query: Tensor, key: Tensor) -> int:
    queries = query.shape[-1]
    of_one_query = max(math.prod(query.shape[:-2]) * key.shape[-1] * query.element_size(), 1)
    if of_one_query * queries <= _SPLIT_BYTES:
        return queries
    return max(16, _BLOCK_BYTES // of_one_query)
