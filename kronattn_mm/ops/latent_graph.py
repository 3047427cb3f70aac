"""Message passing over a few latent nodes: the operator of LatentGNN.

Paper: "LatentGNN: Learning Efficient Non-local Relations for Visual Recognition" (arXiv
1905.11634), its three steps; the normalisations are those of its authors' code. Efficient
attention's paper (arXiv 1812.01243, section 2.3) describes it as an approximation of the n x n
affinity by the product of three matrices of lower rank, and compares with it in Table 3.

With features v (C, n), latent assignments P and Q (d, n), none of them negative:

    step 1, visible to latent   Z = P' v^T              P': each node's row has L2 norm 1 over n
    step 2, latent to latent    Z' = softmax(N(Z) N(Z)^T) Z      N: each node has L2 norm 1
    step 3, latent to visible   y = Z'^T Q'             Q': each position has L2 norm 1 over d

In the symmetric form there is one assignment, and Q' stands in step 1 too.

Cost, multiply-accumulates: 2 n d C + 2 d^2 C. Memory beside inputs and output: the two normalised
assignments, 2 d n.
"""

from torch import Tensor
from torch.nn import functional

from .checks import HALF_PRECISION, without_autocast
from .gradient_layout import contiguous_gradient


def latent_message_passing(
    features: Tensor, to_latent: Tensor, to_visible: Tensor | None = None
) -> Tensor:
    """Gather features into latent nodes, exchange among the nodes, and spread them again.

    Args:
        features (Tensor): Features of the positions, ``(N, C, n)``.
        to_latent (Tensor): How much each position gives to each node, ``(N, d, n)``.
        to_visible (Tensor, optional): How much each position takes of each node, ``(N, d, n)``.
            Defaults to None, the symmetric form: as much as it gives.

    Returns:
        Tensor: ``(N, C, n)`` in the inputs' dtype; half-precision inputs are computed in float32,
        and a row shorter than 0.01 counts as that long when it is normalised.

    Raises:
        ValueError: If the shapes do not fit together.
    """
    assignments = [to_latent] if to_visible is None else [to_latent, to_visible]
    for assignment in assignments:
        if (
            features.dim() != 3
            or assignment.dim() != 3
            or assignment.shape[::2] != features.shape[::2]
            or assignment.shape != to_latent.shape
        ):
            shapes = ', '.join(str(tuple(part.shape)) for part in (features, *assignments))
            raise ValueError(
                f'features (N, C, n) and assignments (N, d, n) are needed, got {shapes}'
            )
    dtype = features.dtype
    shortest = 1e-12
    with without_autocast(features):
        if dtype in HALF_PRECISION:
            # the norm over all positions of a large map leaves the range of half precision
            features, assignments = features.float(), [part.float() for part in assignments]
            shortest = 1e-2  # and so would the gradient of a shorter row
        taking = _normalize(assignments[-1], 1, shortest)
        giving = taking if to_visible is None else _normalize(assignments[0], 2, shortest)
        # Z and Z' stand transposed, so that of the large factors only one has to be
        nodes = features @ contiguous_gradient(giving).transpose(1, 2)
        unit = _normalize(nodes, 1, shortest)
        affinity = (unit.transpose(1, 2) @ unit).softmax(dim=2)
        return (nodes @ affinity.transpose(1, 2) @ taking).to(dtype)


def _normalize(rows: Tensor, dim: int, shortest: float) -> Tensor:
    if shortest > 1e-12:
        # what is all zeros stays so, and gets no gradient, which would be infinite as a half
        rows = rows * (rows.abs().amax(dim, keepdim=True) > 0)
    return functional.normalize(rows, dim=dim, eps=shortest)
