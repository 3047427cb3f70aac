"""The whole efficient-attention block with its products grouped anew.

Paper: "Efficient Attention: Attention with Linear Complexities" (arXiv 1812.01243), section 3.2.
The block is x + W_r E + b_r, where E = (V rho_k(K)^T) rho_q(Q) and K, Q, V are 1 x 1 convolutions
of x. Everything around the two normalisations is linear, so the products may be grouped in other
ways without changing the result (tokens in the last dimension, one head):

    context        E = (V rho_k(K)^T) rho_q(Q)              the paper's order
    similarities   E = V (rho_k(K)^T rho_q(Q))              quadratic, for few positions
    inputs         A = X rho_k(K)^T                         the input gathered by the key maps
                   M = W_r (W_v A + b_v s^T)                values and reprojection of d_k vectors
                   Y = X + M rho_q(Q) + b_r                 instead of n

s are the sums of the key maps. Under softmax they are one, the bias of the keys cancels, and since
a query's weights add up to one as well, the biases of values and reprojection may be added anywhere
after them.

The one with the fewest multiply-accumulates is taken. It runs on the whole map at once where that
is small (:mod:`.whole_map`), where the number of operators counts; a large map is grouped by its
inputs and worked on in tiles that stay in the processor's cache (:mod:`.tiled`).
"""

import torch
from torch import Tensor

from .checks import PLAIN_TENSORS, in_graph
from .projections import Projections
from .tiled import tiled_attention
from .tiles import SMALLEST_DIVIDED
from .whole_map import whole_map_attention

__all__ = [
    'Projections',
    'grouping_costs',
    'may_regroup',
    'regrouped_attention',
    'regrouped_cost',
    'regrouping_pays',
]


def grouping_costs(
    positions: int, channels: int, key_channels: int, value_channels: int, num_heads: int = 1
) -> dict[str, int]:
    """Return the multiply-accumulates of the block for one image, by grouping.

    Args:
        positions (int): Positions n.
        channels (int): Channels d of the map.
        key_channels (int): d_k, all heads together.
        value_channels (int): d_v, all heads together.
        num_heads (int): Heads. Defaults to 1.
    """
    n, d, d_k, d_v = positions, channels, key_channels, value_channels
    projections = n * d * (2 * d_k + 2 * d_v)
    return {
        'context': projections + 2 * n * d_k * d_v // num_heads,
        'similarities': projections + n * n * (d_k + d_v),
        'inputs': 4 * n * d * d_k + 2 * d * d_k * d_v // num_heads,
    }


def regrouped_cost(
    positions: int, channels: int, key_channels: int, value_channels: int, num_heads: int = 1
) -> int:
    """Return the multiply-accumulates of the block for one image if grouped by its inputs."""
    return grouping_costs(positions, channels, key_channels, value_channels, num_heads)['inputs']


def regrouping_pays(
    positions: int, channels: int, key_channels: int, value_channels: int, num_heads: int = 1
) -> bool:
    """Say whether :func:`regrouped_attention` is the faster form for maps of that size.

    On a large map it is not where keys outnumber values: the paper's order has the fewest products
    then, and convolutions do them as fast.
    """
    if positions < SMALLEST_DIVIDED:
        return True
    costs = grouping_costs(positions, channels, key_channels, value_channels, num_heads)
    return costs['inputs'] <= costs['context']


def may_regroup(x: Tensor) -> bool:
    """Say whether :func:`regrouped_attention` takes ``x`` here and now.

    Graphs that are traced, compiled or exported keep the straightforward form, as do counters of
    operations, which work with tensors of other types, and half precision, whose sums need care.
    """
    if type(x) not in PLAIN_TENSORS or x.device.type not in ('cpu', 'cuda'):
        return False
    if x.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled(x.device.type):
        return False
    return not in_graph()


def regrouped_attention(
    x: Tensor, projections: Projections, num_heads: int, normalization: str, tile: int | None = None
) -> Tensor:
    """Return x plus its reprojected efficient attention.

    Args:
        x (Tensor): Feature map, ``(N, d, *spatial)``, float32 or float64.
        projections (Projections): Weights and biases.
        num_heads (int): Heads among which key and value channels are divided.
        normalization (str): ``'softmax'`` or ``'scaling'``.
        tile (int, optional): Positions in a tile; the map is grouped by its inputs then. Defaults
            to what suits the map and the threads.

    Returns:
        Tensor: Of the shape and memory format of ``x``. A large map's can be differentiated once.
    """
    positions = x.shape[2:].numel()
    if tile is None and positions < SMALLEST_DIVIDED:
        costs = grouping_costs(
            positions, x.shape[1], projections.keys.shape[0], projections.values.shape[0], num_heads
        )
        grouping = min(costs, key=costs.__getitem__)
        return whole_map_attention(x, projections, num_heads, normalization, grouping)
    return tiled_attention(x, projections, num_heads, normalization, tile)
