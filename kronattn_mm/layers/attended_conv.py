"""A convolution with an attention branch beside it: what the attended convolutions share.

``Conv2d`` below is a convolution that is *not* an ``nn.Conv2d``: tools that make one convolution of
a convolution and the batch norm after it (``fuse_conv_bn``) look for that class and would forget
the branch. Its name is on purpose: mmengine's initialisers compare the names of a class and of its
direct bases with ``layer='Conv2d'`` of a config, so the ``init_cfg`` of a backbone reaches the
weight of an attended convolution as it reaches any other.

On a CPU with two threads or more a 1 x 1 convolution of several large maps is one matrix product
for each, and that of one map at inference is one for each thread. It takes less time there than
torch's convolution and may begin with a vector instead of zero. It is the same but for rounding;
``kronattn_mm.ops.use_backend('reference')`` keeps to the convolution.

``weight`` and ``bias`` have the names that they have in ``nn.Conv2d``, and everything new is under
``attention.``, so a checkpoint of the plain network loads as before.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.utils import _pair

from ..ops import pointwise_convolution_by_image
from ..ops.backend import backend
from ..ops.checks import eager_on_cpu, needs_gradient
from .arguments import boolean, check_input, choice, positive_int, positive_number
from .attention_branch import norm_factor_and_offset

# Below so many positions torch's convolution is as fast as a matrix product, or faster.
_POSITIONS_OF_PRODUCT = 128

PLACES = ('before_norm', 'after_norm')


class Conv2d(_ConvNd):
    """A two-dimensional convolution; arguments and weights are those of ``nn.Conv2d``."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = 'zeros',
    ) -> None:
        padding = padding if isinstance(padding, str) else _pair(padding)
        super().__init__(
            positive_int('in_channels', in_channels),
            positive_int('out_channels', out_channels),
            _pair(kernel_size),
            _pair(stride),
            padding,
            _pair(dilation),
            False,
            _pair(0),
            positive_int('groups', groups),
            boolean('bias', bias),
            padding_mode,
        )

    @property
    def depthwise(self) -> bool:
        """Whether every channel is convolved by itself."""
        return self.groups == self.in_channels and self.groups > 1

    @property
    def pointwise(self) -> bool:
        """Whether the convolution is a matrix product at each position by itself."""
        return (
            self.kernel_size == self.stride == (1, 1)
            and self.groups == 1
            and self.padding in ((0, 0), 'valid', 'same')
        )

    def trunk(self, x: Tensor) -> Tensor:
        """Return T(x), the convolution alone, for ``x`` of shape ``(N, in_channels, H, W)``."""
        return self.convolve(x, self.weight, self.bias, self.groups)

    def forward(self, x: Tensor) -> Tensor:
        """Return T(x); see :meth:`trunk`."""
        return self.trunk(x)

    def product_pays(self, x: Tensor) -> bool:
        """Say whether :meth:`product` does the same as :meth:`trunk` here, in less time."""
        return (
            self.pointwise
            and eager_on_cpu(x, self.weight)
            and torch.get_num_threads() > 1
            and backend() != 'reference'
            and x.is_contiguous()
            and (
                not needs_gradient(x, self.weight)
                if x.shape[0] == 1
                else x.shape[2] * x.shape[3] >= _POSITIONS_OF_PRODUCT
            )
        )

    def product(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
        """Return T(x) as one matrix product for each image; it equals T(x) but for rounding.

        Args:
            x (Tensor): ``(N, in_channels, H, W)``.
            shift (Tensor, optional): ``(N, out_channels)``, what is added at all positions; the
                product begins with it, so that it takes no pass of its own.
        """
        if self.bias is not None:
            shift = self.bias.expand(x.shape[0], -1) if shift is None else shift + self.bias
        return pointwise_convolution_by_image(
            x, self.weight.expand(x.shape[0], -1, -1, -1, -1), shift
        )

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        """Convolve with stride, padding and dilation of this convolution and the weights given."""
        padding = self.padding
        if self.padding_mode != 'zeros':
            x = functional.pad(x, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return functional.conv2d(x, weight, bias, self.stride, padding, self.dilation, groups)

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # mmcv's efficient_conv_bn_eval calls this with weights of its own, and nothing else.
        raise RuntimeError(
            f'{type(self).__name__} cannot be run as a plain convolution, which '
            'would leave its attention out; turn off efficient_conv_bn_eval '
            '(kronattn_mm.plugging.fused folds batch norms)'
        )

    def fold_norm_into_weight(self, norm: _BatchNorm) -> Tensor:
        """Multiply weight and bias by the factor of a batch norm in eval mode.

        Returns:
            Tensor: The norm's offset, ``(out_channels,)``, which is still to be added.

        Raises:
            ValueError: If the norm is for another number of channels or keeps no statistics.
        """
        if norm.num_features != self.out_channels:
            raise ValueError(
                f'a norm of {norm.num_features} channels does not follow a '
                f'convolution of {self.out_channels}'
            )
        factor, offset = norm_factor_and_offset(norm)
        with torch.no_grad():
            self.weight.mul_(factor[:, None, None, None])
            if self.bias is not None:
                self.bias.mul_(factor)
        return offset

    def add_to_bias(self, offset: Tensor) -> None:
        """Add ``(out_channels,)`` to the bias, which is made if there is none."""
        if self.bias is None:
            self.bias = nn.Parameter(offset.clone())
        else:
            with torch.no_grad():
                self.bias.add_(offset)


class BranchedConv:
    """Mixed into a :class:`Conv2d` whose child ``attention`` gives ``(N, out_channels)`` for x.

    A class that uses it defines :meth:`combine`, sets :attr:`place` and :attr:`joined` in its
    constructor, and then says with :meth:`fold_norm` what a batch norm after it becomes.
    """

    place: str
    # Set where the sum after the norm has been arranged for.
    joined: bool

    def set_place(self, place: str) -> None:
        """Say where trunk and branch meet, ``'before_norm'`` or ``'after_norm'``."""
        self.place = choice('place', place, PLACES)
        self.joined = self.place == 'before_norm'

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended convolution of ``x``, ``(N, in_channels, H, W)``.

        Raises:
            RuntimeError: If trunk and branch are to meet after the norm and nobody arranged it.
            ValueError: If ``x`` has another shape.
        """
        check_input(self, x)
        if self.place == 'before_norm':
            return self.attend(x, self.attention(x))
        if not self.joined:
            raise RuntimeError(
                f"{type(self).__name__} with place='after_norm' does not know its "
                'norm; use it through convs of kronattn_mm.Plugged'
            )
        return self.trunk(x)

    def attend(self, x: Tensor, attention: Tensor) -> Tensor:
        """Convolve ``x`` and combine the result with the branch's ``(N, out_channels)``."""
        trunk = self.product(x) if self.product_pays(x) else self.trunk(x)
        return self.combine(trunk, attention)

    def combine(self, trunk: Tensor, attention: Tensor) -> Tensor:
        """Combine T(x) ``(N, out_channels, H', W')`` with the branch's ``(N, out_channels)``."""
        raise NotImplementedError(f'{type(self).__name__} does not define combine')

    def fold_norm(self, norm: _BatchNorm) -> None:
        """Make the batch norm that follows, and those in the branch, part of the weights.

        The result equals the original in eval mode but for rounding; it is for inference only.
        """
        raise NotImplementedError(f'{type(self).__name__} does not define fold_norm')

    def extra_repr(self) -> str:
        place = '' if self.place == 'before_norm' else f', place={self.place!r}'
        return f'{super().extra_repr()}{place}'


def hidden_units(conv: Conv2d, hidden_ratio: float, depthwise_hidden_ratio: float) -> int:
    """Return the hidden units of a convolution's branch: a multiple of its output channels.

    The paper (section 5.1) takes c_out for pointwise convolutions and c_out / 6 for depthwise
    ones, which its bottlenecks widen six times. The multiple is rounded down, to no less than 1.
    """
    ratio = depthwise_hidden_ratio if conv.depthwise else hidden_ratio
    name = 'depthwise_hidden_ratio' if conv.depthwise else 'hidden_ratio'
    # 1/6 is a little off in floating point, which must not lose a unit.
    return max(1, int(conv.out_channels * positive_number(name, ratio) + 1e-6))
