"""The weights of an attention block as matrices, which is how its products can be grouped anew."""

from typing import NamedTuple

from torch import Tensor


class Projections(NamedTuple):
    """Weights of the block's four 1 x 1 convolutions as matrices, and their biases."""

    keys: Tensor  # (d_k, d)
    key_bias: Tensor  # (d_k,)
    queries: Tensor  # (d_k, d)
    query_bias: Tensor  # (d_k,)
    values: Tensor  # (d_v, d)
    value_bias: Tensor  # (d_v,)
    reprojection: Tensor  # (d, d_v)
    reprojection_bias: Tensor  # (d,)


def split_heads(tensor: Tensor, dim: int, num_heads: int) -> Tensor:
    """Split the channels in ``dim`` by heads: ``(..., heads, rows, columns)``."""
    if num_heads == 1:
        return tensor.unsqueeze(-3)
    return tensor.unflatten(dim, (num_heads, -1)).movedim(dim, -3)


def join_heads(tensor: Tensor, dim: int) -> Tensor:
    """Undo :func:`split_heads`; ``dim`` as there."""
    if tensor.shape[-3] == 1:
        return tensor.squeeze(-3)
    return tensor.movedim(-3, dim).flatten(dim, dim + 1)
