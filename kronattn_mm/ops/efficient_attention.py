"""Efficient attention: the same products in the order that costs linear time and memory.

Paper: "Efficient Attention: Attention with Linear Complexities" (arXiv 1812.01243), section 3.2,
equations 3 and 4; the equality with dot-product attention under scaling is section 3.3,
equations 5 to 8.

Deviation: with scaling, both factors 1/sqrt(n) are applied to the context, not one of them to the
queries. The result is the same (scalars commute, equation 7), and the context becomes an average
over positions, which cannot leave the range of half precision however many positions there are.

Cost, multiply-accumulates: (m + n) d_k d_v. Memory beside inputs and output: the two normalised
maps, d_k (m + n), and the context, d_k d_v.
"""

from torch import Tensor

from .checks import HALF_PRECISION, check_attention_inputs, without_autocast


def efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, normalization: str = 'softmax'
) -> Tensor:
    """Gather the values into ``d_k`` global context vectors and mix those for every query.

    The paper keeps tokens in rows, ``E = rho_q(Q) (rho_k(K)^T V)``; here they are in the last
    dimension, as a convolution leaves them, so the same product reads
    ``(V rho_k(K)^T) rho_q(Q)``.

    Args:
        query (Tensor): Queries, ``(..., d_k, m)``. Leading dimensions are batch and heads.
        key (Tensor): Keys, ``(..., d_k, n)``.
        value (Tensor): Values, ``(..., d_v, n)``.
        normalization (str): ``'softmax'`` takes the softmax of the queries over their ``d_k``
            channels and of the keys over the ``n`` positions; ``'scaling'`` divides each of them
            by ``sqrt(n)``. Defaults to ``'softmax'``.

    Returns:
        Tensor: Attended values, ``(..., d_v, m)``, in the inputs' dtype. For half-precision inputs
        the maxima, sums and the context are computed in float32.

    Raises:
        TypeError: If an input is not a floating-point tensor or the dtypes differ.
        ValueError: If the shapes do not fit or ``normalization`` is unknown.
    """
    check_attention_inputs(query, key, value, normalization)
    dtype = query.dtype
    with without_autocast(query):
        if dtype in HALF_PRECISION:
            # A key weight is about 1/n: at 200 x 304 that is below float16's smallest normal
            # number, so the weights stay in float32 until they have been summed over.
            query, key, value = query.float(), key.float(), value.float()
        if normalization == 'scaling':
            scale = key.shape[-1] ** -0.5  # not math.sqrt, which would fix n in an exported graph
            context = (value * scale) @ (key * scale).transpose(-2, -1)
        else:
            query = query.softmax(dim=-2)
            context = value @ template_maps(key).transpose(-2, -1)
        return (context @ query).to(dtype)


def template_maps(key: Tensor, normalization: str = 'softmax') -> Tensor:
    """Return the normalised keys: ``d_k`` global attention maps (paper, section 3.4).

    Args:
        key (Tensor): Keys, ``(..., d_k, n)``.
        normalization (str): ``'softmax'`` (each map sums to one) or ``'scaling'`` (each map is
            divided by ``sqrt(n)``). Defaults to ``'softmax'``.

    Returns:
        Tensor: The maps, ``(..., d_k, n)``; in float32 for half-precision keys, since the maps of
        a large image hold numbers below the smallest that float16 represents well.
    """
    if key.dtype in HALF_PRECISION:
        key = key.float()
    if normalization == 'scaling':
        return key * key.shape[-1] ** -0.5
    return key.softmax(dim=-1)
