"""CGNL, the compact generalized non-local block that the efficient-attention paper compares with.

Paper: "Compact Generalized Non-local Network" (arXiv 1810.13125); compared with in "Efficient
Attention" (arXiv 1812.01243), Table 3. What the paper does not say was taken from what its
authors' code computes:

    y = x + GroupNorm(reprojection(A(queries(x), keys(x), values(x))))

with 1x1 convolutions without bias, :func:`kronattn_mm.ops.compact_non_local` as A in each group of
channels, and a reprojection and a norm in the same groups. Names there: t (queries), p (keys),
g (values), z (reprojection), gn (norm).

A property that neither paper mentions: with the dot product, all outputs of a group are its
queries times one number, the group's reprojection is linear, and its norm divides by the group's
spread. The number cancels but for its sign and for the norm's epsilon. The global context
therefore reaches the output, and the gradient the keys and values, only where the reprojected
values are about as small as sqrt(epsilon), as they are with the initial weights. The Taylor
expansion (``order``) does not have this, since its powers are mixed before they are normalised.

Cost for n positions, C channels, c inner channels and G groups, multiply-accumulates:
3 n C c + n C c / G, and 2 n c for the products (with an order p, (4 p + 1) n c).
"""

from torch import Tensor, nn
from torch.nn import functional

from ..ops import compact_non_local
from ..ops.checks import HALF_PRECISION, without_autocast
from .arguments import boolean, check_input, positive_int, positive_number


class CGNL2d(nn.Module):
    """Compact generalized non-local block for feature maps ``(N, C, H, W)``.

    Args:
        in_channels (int): Channels C of the input, which are those of the output too.
        inner_channels (int, optional): Channels c of queries, keys and values. Defaults to half
            of ``in_channels``.
        groups (int): Groups of channels that attend by themselves. Defaults to 8.
        order (int, optional): Order of the Taylor expansion of the Gaussian RBF kernel (the
            authors' CGNLx has 3). Defaults to None, the dot product.
        gamma (float): Of the Gaussian RBF kernel. Defaults to 1e-4, the authors'.
        scale (bool): Divide the products of keys and values by the square root of how many there
            are. Defaults to False, as theirs.
        zero_init (bool): Start with a norm of weight zero, so that the block is exactly the
            identity. Defaults to True.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range or the groups do not divide the channels.
    """

    spatial_dims = 2

    def __init__(
        self,
        in_channels: int,
        inner_channels: int | None = None,
        groups: int = 8,
        order: int | None = None,
        gamma: float = 1e-4,
        scale: bool = False,
        zero_init: bool = True,
    ) -> None:
        super().__init__()
        self.in_channels = positive_int('in_channels', in_channels)
        self.inner_channels = positive_int(
            'inner_channels', max(in_channels // 2, 1) if inner_channels is None else inner_channels
        )
        self.groups = positive_int('groups', groups)
        for name in ('in_channels', 'inner_channels'):
            if getattr(self, name) % self.groups:
                raise ValueError(
                    f'groups must divide {name}, got groups={groups} and '
                    f'{name}={getattr(self, name)}'
                )
        self.order = None if order is None else positive_int('order', order)
        self.gamma = positive_number('gamma', gamma)
        self.scale = boolean('scale', scale)
        self.zero_init = boolean('zero_init', zero_init)
        self.queries = nn.Conv2d(self.in_channels, self.inner_channels, 1, bias=False)
        self.keys = nn.Conv2d(self.in_channels, self.inner_channels, 1, bias=False)
        self.values = nn.Conv2d(self.in_channels, self.inner_channels, 1, bias=False)
        self.reprojection = nn.Conv2d(
            self.inner_channels, self.in_channels, 1, groups=self.groups, bias=False
        )
        self.norm = nn.GroupNorm(self.groups, self.in_channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew, from a normal distribution of deviation 0.01 as the authors do.

        The norm's weight becomes zero if ``zero_init`` is set, else one.
        """
        for projection in (self.queries, self.keys, self.values, self.reprojection):
            nn.init.normal_(projection.weight, std=0.01)
        nn.init.constant_(self.norm.weight, 0.0 if self.zero_init else 1.0)
        nn.init.zeros_(self.norm.bias)

    def init_weights(self) -> None:
        """Undo what an enclosing module's ``init_cfg`` wrote (mmengine calls this after it)."""
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x + norm(reprojection(A(x)))`` for ``x`` of shape ``(N, in_channels, H, W)``."""
        check_input(self, x)
        query = self.queries(x)
        attended = compact_non_local(
            self._split_groups(query),
            self._split_groups(self.keys(x)),
            self._split_groups(self.values(x)),
            self.order,
            self.gamma,
            self.scale,
        )
        attended = attended.reshape(x.shape[0], self.inner_channels, *x.shape[2:])
        if query.dtype in HALF_PRECISION:
            return x + self._reproject_in_float32(attended).to(x.dtype)
        return x + self.norm(self.reprojection(attended))

    def extra_repr(self) -> str:
        return (
            f'in_channels={self.in_channels}, inner_channels={self.inner_channels}, '
            f'groups={self.groups}, order={self.order}, gamma={self.gamma}, scale={self.scale}, '
            f'zero_init={self.zero_init}'
        )

    def _reproject_in_float32(self, attended: Tensor) -> Tensor:
        # the norm brings the values back into the range of half precision, not before
        with without_autocast(attended):
            attended = functional.conv2d(
                attended, self.reprojection.weight.float(), groups=self.groups
            )
            return functional.group_norm(
                attended,
                self.groups,
                self.norm.weight.float(),
                self.norm.bias.float(),
                self.norm.eps,
            )

    def _split_groups(self, x: Tensor) -> Tensor:
        # (N, c, H, W) -> (N, groups, c / groups * H * W)
        return x.unflatten(1, (self.groups, -1)).flatten(2)
