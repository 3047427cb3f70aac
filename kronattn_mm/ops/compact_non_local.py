"""The non-local product over positions and channels at once: the operator of CGNL.

Paper: "Compact Generalized Non-local Network" (arXiv 1810.13125). Efficient attention's paper
(arXiv 1812.01243, section 2.3) describes it and compares with it in Table 3. All values of a group
of channels are flattened into one vector of c n scalars. With theta, phi, g such vectors:

    dot product         y = theta (phi^T g)
    Gaussian RBF        y = sum_p a_p theta^p ((phi^p)^T g),  p = 0 ... order,
                        a_p = exp(-2 gamma) (2 gamma)^p / p!   (Taylor, powers element by element)

phi^T g is one number for a group, so every output is the query times a polynomial with
coefficients that all outputs of the group share. The exponential of the squared norms, which the
expansion would ask for, is exp(-2 gamma) in the authors' code, as for vectors of norm 1, and here.

Cost, multiply-accumulates for n positions and C channels in all groups: 2 n C; with an order p,
(4 p + 1) n C. Memory beside inputs and output: one tensor of the size of a group's input.
"""

import math

from torch import Tensor

from .checks import HALF_PRECISION, without_autocast


def compact_non_local(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    order: int | None = None,
    gamma: float = 1e-4,
    scale: bool = False,
) -> Tensor:
    """Multiply every query by what its group's keys and values have in common.

    Args:
        query (Tensor): theta, ``(N, groups, c n)``.
        key (Tensor): phi, ``(N, groups, c n)``.
        value (Tensor): g, ``(N, groups, c n)``.
        order (int, optional): Order of the Taylor expansion of the Gaussian RBF kernel. Defaults
            to None, the dot product.
        gamma (float): Of the Gaussian RBF kernel. Defaults to 1e-4.
        scale (bool): Divide the products of keys and values by ``sqrt(c n)``. Defaults to False.

    Returns:
        Tensor: ``(N, groups, c n)`` in the inputs' dtype; in float32 for half-precision inputs,
        because a sum over all positions and channels leaves the range of float16.

    Raises:
        ValueError: If the shapes differ.
    """
    if not query.shape == key.shape == value.shape or query.dim() != 3:
        raise ValueError(
            'query, key and value must all be (N, groups, values), got '
            f'{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}'
        )
    with without_autocast(query):
        if query.dtype in HALF_PRECISION:
            query, key, value = query.float(), key.float(), value.float()
        if scale:
            value = value * value.shape[-1] ** -0.5
        if order is None:
            return query * (key * value).sum(-1, keepdim=True)
        coefficients = []
        product = value  # phi^p g, element by element
        for power in range(order + 1):
            weight = math.exp(-2 * gamma) * (2 * gamma) ** power / math.factorial(power)
            coefficients.append(weight * product.sum(-1, keepdim=True))
            product = product * key if power < order else product
        # Horner's rule: one pass over the queries for each order, and no power of them is kept
        result = coefficients.pop().expand_as(query)
        while coefficients:
            result = result * query + coefficients.pop()
        return result
