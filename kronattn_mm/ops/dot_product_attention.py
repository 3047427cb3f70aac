"""Dot-product attention, the quadratic operator that the other operators are measured against.

Paper: "Efficient Attention: Attention with Linear Complexities" (arXiv 1812.01243), section 3.1,
equations 1 and 2; the same operator is equation 1 of "Kronecker Attention Networks"
(arXiv 2007.08442). There is no 1/sqrt(d_k) in either.

Cost, multiply-accumulates: m n (d_k + d_v). Memory: the similarities, m n.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .checks import check_attention_inputs, without_autocast


def dot_product_attention(query: Tensor, key: Tensor, value: Tensor,
                          normalization: str = 'softmax',
                          coefficient_transform: Callable[[Tensor], Tensor] | None = None
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
            scale = key.shape[-1]**-0.5  # not math.sqrt, which would fix n in an exported graph
            query, key = query * scale, key * scale
        similarity = query.transpose(-2, -1) @ key
        if coefficient_transform is not None:
            similarity = coefficient_transform(similarity)
        if normalization == 'softmax':
            similarity = similarity.softmax(dim=-1)
        return (value @ similarity.transpose(-2, -1)).to(dtype)
