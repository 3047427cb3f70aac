"""LatentGNN, a layer that the efficient-attention paper compares with.

Paper: "LatentGNN: Learning Efficient Non-local Relations for Visual Recognition" (arXiv
1905.11634); compared with in "Efficient Attention" (arXiv 1812.01243), Table 3. What the paper
does not say was taken from what its authors' code computes:

    v = n(down_v2l(x)), u = n(down_l2v(x))       to in_channels / channel_stride; n: L2 norm 1 at
                                                 each position
    P_k = psi_v2l_k(v), Q_k = psi_l2v_k(u)       to the k-th kernel's latent nodes
    y = x + gamma up([message passing of v over P_k, Q_k for all k])

where ``down`` and ``up`` are a 1x1 convolution and batch norm, ``psi`` both and ReLU, and message
passing is :func:`kronattn_mm.ops.latent_message_passing`. In the symmetric mode P = Q.

Deviations: in half precision a vector shorter than 0.01 counts as that long when it is normalised
(1e-12 else). The graph convolution that the authors' code can add, off by default there, is left
out. ``zero_init=False`` starts gamma at one.

Cost for n positions, C channels, stride s and d nodes in all, multiply-accumulates:
3 n C^2 / s + 4 n d C / s (symmetric: 2 n C^2 / s + 3 n d C / s), and 2 C / s times the sum of the
kernels' squared nodes; with K kernels the last convolution costs K times as much.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..ops import latent_message_passing
from ..ops.checks import HALF_PRECISION
from .arguments import boolean, check_input, choice, positive_int

MODES = ('asymmetric', 'symmetric')


class LatentGNN2d(nn.Module):
    """Global context over a few latent nodes, for feature maps ``(N, C, H, W)``.

    Args:
        in_channels (int): Channels C of the input, which are those of the output too.
        latent_channels (int | Sequence[int]): Latent nodes of each kernel; a number means one
            kernel. The authors' code has no default; its example takes two kernels of 100.
            Defaults to 100.
        channel_stride (int): The channels are reduced to C divided by it. Defaults to 4.
        mode (str): ``'asymmetric'`` (assignments of their own for giving and taking) or
            ``'symmetric'``. Defaults to ``'asymmetric'``.
        zero_init (bool): Start with gamma at zero, so that the layer is exactly the identity.
            Defaults to True.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range, ``channel_stride`` does not divide the
            channels, or the mode is unknown.
    """

    spatial_dims = 2

    def __init__(
        self,
        in_channels: int,
        latent_channels: int | Sequence[int] = 100,
        channel_stride: int = 4,
        mode: str = 'asymmetric',
        zero_init: bool = True,
    ) -> None:
        super().__init__()
        self.in_channels = positive_int('in_channels', in_channels)
        self.latent_channels = _kernels(latent_channels)
        self.channel_stride = positive_int('channel_stride', channel_stride)
        if self.in_channels % self.channel_stride:
            raise ValueError(
                f'channel_stride must divide in_channels, got channel_stride={channel_stride} and '
                f'in_channels={in_channels}'
            )
        self.mode = choice('mode', mode, MODES)
        self.zero_init = boolean('zero_init', zero_init)
        inner = self.in_channels // self.channel_stride
        asymmetric = mode == 'asymmetric'
        self.down_v2l = _conv_norm(self.in_channels, inner)
        self.down_l2v = _conv_norm(self.in_channels, inner) if asymmetric else None
        self.psi_v2l = nn.ModuleList(_psi(inner, nodes) for nodes in self.latent_channels)
        self.psi_l2v = (
            nn.ModuleList(_psi(inner, nodes) for nodes in self.latent_channels)
            if asymmetric
            else None
        )
        self.up = _conv_norm(inner * len(self.latent_channels), self.in_channels)
        self.gamma = nn.Parameter(torch.zeros(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew; gamma becomes zero if ``zero_init`` is set, else one."""
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.BatchNorm2d)):
                module.reset_parameters()
        nn.init.constant_(self.gamma, 0.0 if self.zero_init else 1.0)

    def init_weights(self) -> None:
        """Undo what an enclosing module's ``init_cfg`` wrote (mmengine calls this after it)."""
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x + gamma up(messages)`` for ``x`` of shape ``(N, in_channels, H, W)``."""
        check_input(self, x)
        features, giving, taking = self._assign(x)
        messages = [
            latent_message_passing(
                features.flatten(2), give.flatten(2), None if take is None else take.flatten(2)
            )
            for give, take in zip(giving, taking, strict=True)
        ]
        messages = messages[0] if len(messages) == 1 else torch.cat(messages, dim=1)
        return x + self.gamma * self.up(messages.unflatten(2, x.shape[2:]))

    def attention_maps(self, x: Tensor) -> Tensor:
        """Return what each position gives to each node (step 1), of all kernels in turn.

        Each node's map is scaled to L2 norm 1, in the symmetric mode too, where step 1 has another
        norm: it shows where a node looks, not how strongly.

        Args:
            x (Tensor): Input of the layer, ``(N, in_channels, H, W)``.

        Returns:
            Tensor: ``(N, 1, sum(latent_channels), H, W)``, none negative, each map of L2 norm 1
            (or 0, where the ReLU let nothing pass).
        """
        check_input(self, x)
        _, giving, _ = self._assign(x)
        maps = torch.cat([give.flatten(2).float() for give in giving], dim=1)
        maps = functional.normalize(maps, dim=2)
        return maps.unflatten(2, x.shape[2:]).unsqueeze(1)

    def extra_repr(self) -> str:
        return (
            f'in_channels={self.in_channels}, latent_channels={self.latent_channels}, '
            f'channel_stride={self.channel_stride}, mode={self.mode!r}, zero_init={self.zero_init}'
        )

    def _assign(self, x: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor | None]]:
        features = _normalize(self.down_v2l(x))
        giving = [psi(features) for psi in self.psi_v2l]
        if self.psi_l2v is None:
            return features, giving, [None] * len(giving)
        other = _normalize(self.down_l2v(x))
        return features, giving, [psi(other) for psi in self.psi_l2v]


def _kernels(latent_channels: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(latent_channels, str) or not isinstance(latent_channels, Sequence):
        latent_channels = [latent_channels]
    if not latent_channels:
        raise ValueError(f'latent_channels must name at least one kernel, got {latent_channels!r}')
    return tuple(positive_int('latent_channels', nodes) for nodes in latent_channels)


def _conv_norm(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels)
    )


def _normalize(x: Tensor) -> Tensor:
    # The usual smallest divisor, 1e-12, is zero in float16, where vectors of zeros would become
    # NaN, and their gradients, 1e12 times as large, infinite.
    if x.dtype in HALF_PRECISION:
        return functional.normalize(x.float(), dim=1, eps=1e-2).to(x.dtype)
    return functional.normalize(x, dim=1)


def _psi(in_channels: int, nodes: int) -> nn.Sequential:
    return _conv_norm(in_channels, nodes).append(nn.ReLU(inplace=True))
