"""What LatentGNN and CGNL cost, in the accounting of the efficient-attention paper.

Paper: "Efficient Attention" (arXiv 1812.01243), Table 3, which prints parameters and computation of
the two as shares of a Mask R-CNN and no formula. The formulae are read off the layers
(kronattn_mm/layers/latent_gnn.py and cgnl.py) and count as that paper counts its own: products
only, each computed tensor once, norms and element-wise work nothing. With n positions, C channels:

LatentGNN, stride s, kernels of d_k nodes, d their sum, K their number:

    multiply-accumulates   n C^2 (2 + K) / s + 4 n d C / s + 2 (sum d_k^2) C / s
    memory (floats)        n (2 C / s + 2 d + K C / s + 2 C) + 2 d C / s + sum d_k^2

(symmetric: one down and one psi less.) CGNL, c inner channels, G groups, order p or none:

    multiply-accumulates   n C c (3 + 1 / G) + 2 n c, with an order (4 p + 1) n c
    memory (floats)        n (4 c + 2 C) + G, with an order (p + 1) G

Extension: parameters, all that the layers have.
"""

from collections.abc import Sequence

from .paper import FLOAT_BYTES, PaperCost, check_positive, method


@method
def latent_gnn(
    positions: int,
    in_channels: int,
    latent_channels: Sequence[int] = (100,),
    channel_stride: int = 4,
    symmetric: bool = False,
) -> PaperCost:
    """Cost of a LatentGNN layer, for one image.

    Args:
        positions (int): Positions n of the feature map.
        in_channels (int): Channels C of the feature map.
        latent_channels (Sequence[int]): Latent nodes of each kernel. Defaults to one of 100.
        channel_stride (int): By which the channels are reduced. Defaults to 4.
        symmetric (bool): One assignment for giving and taking. Defaults to False.

    Raises:
        ValueError: If a size is not a positive integer or the stride does not divide the channels.
    """
    check_positive(positions=positions, in_channels=in_channels, channel_stride=channel_stride)
    for nodes in latent_channels:
        check_positive(latent_channels=nodes)
    if in_channels % channel_stride or not latent_channels:
        raise ValueError(
            f'channel_stride={channel_stride} must divide in_channels={in_channels}, and '
            f'latent_channels={latent_channels!r} name a kernel'
        )
    inner = in_channels // channel_stride
    kernels, nodes = len(latent_channels), sum(latent_channels)
    squares = sum(count * count for count in latent_channels)
    ways = 1 if symmetric else 2
    weights = ways * inner * (in_channels + nodes) + inner * kernels * in_channels
    norms = 2 * (ways * (inner + nodes) + in_channels)
    macc = positions * (weights + 2 * nodes * inner) + 2 * squares * inner
    floats = positions * (ways * (inner + nodes) + kernels * inner + 2 * in_channels)
    floats += 2 * nodes * inner + squares
    return PaperCost(weights + norms + 1, macc, FLOAT_BYTES * floats)


@method
def cgnl(
    positions: int,
    in_channels: int,
    inner_channels: int | None = None,
    groups: int = 8,
    order: int | None = None,
) -> PaperCost:
    """Cost of a CGNL block, for one image.

    Args:
        positions (int): Positions n of the feature map.
        in_channels (int): Channels C of the feature map.
        inner_channels (int, optional): Channels c inside. Defaults to half of ``in_channels``.
        groups (int): Groups of channels. Defaults to 8.
        order (int, optional): Order p of the Taylor expansion. Defaults to None, the dot product.

    Raises:
        ValueError: If a size is not a positive integer or the groups do not divide the channels.
    """
    inner_channels = max(in_channels // 2, 1) if inner_channels is None else inner_channels
    check_positive(
        positions=positions, in_channels=in_channels, inner_channels=inner_channels, groups=groups
    )
    if order is not None:
        check_positive(order=order)
    if in_channels % groups or inner_channels % groups:
        raise ValueError(
            f'groups={groups} must divide in_channels={in_channels} and '
            f'inner_channels={inner_channels}'
        )
    weights = in_channels * inner_channels * 3 + in_channels * inner_channels // groups
    products = (2 if order is None else 4 * order + 1) * positions * inner_channels
    floats = positions * (4 * inner_channels + 2 * in_channels)
    floats += groups * (1 if order is None else order + 1)
    return PaperCost(
        weights + 2 * in_channels, positions * weights + products, FLOAT_BYTES * floats
    )
