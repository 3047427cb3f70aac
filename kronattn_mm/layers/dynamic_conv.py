"""Dynamic convolution and CondConv: the kernel is mixed from K kernels by attention to the input.

Papers: "Dynamic Convolution: Attention over Convolution Kernels" (arXiv 1912.03458): pi =
softmax(F(x) / temperature), F being global average pooling and two fully connected layers with
ReLU between; "CondConv" (arXiv 1904.04971): r = sigmoid(R avg(x)), one layer. Both are rivals in
"Shift-and-Balance Attention" (arXiv 2103.13080), section 5.1, with K = 4, c_in / 4 hidden units and
a temperature of 30 that stays.

Readings and deviations:

- Kernel 0 is ``weight``, where a plain convolution has its own; kernels 1 to K - 1 are under
  ``attention.kernels``. A checkpoint of the plain network has only the former: the others then
  become copies of it, so that dynamic convolution starts as the plain one (the shares add up to
  one). CondConv's r do not; with the copies its bias is set so that each begins near 1 / K.
  The copies part as training goes on, because images have different shares.
- The temperature is a buffer, so that a checkpoint made while it fell is evaluated with it.
- The first fully connected layer has no bias, the second has one.

Cost beside the convolution, for one image: c_in h w additions, c_in c_hid + c_hid K
multiply-accumulates for the shares (CondConv c_in K), and K times the weights for mixing.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from ..ops import mix_kernels, pointwise_convolution_by_image
from ..ops.mixed_conv import (
    blend_in_turn,
    mix_in_turn,
    one_image_at_inference,
    pointwise_convolution_of_one,
)
from .arguments import check_input, positive_int, positive_number
from .attended_conv import Conv2d
from .attention_branch import norm_factor_and_offset
from .hooks import has_hooks


class KernelShares(nn.Module):
    """What mixes the kernels: their shares from the input, and the kernels beside the first."""

    # How the kernels of one image are mixed by its shares.
    mix = staticmethod(mix_in_turn)

    def __init__(self, conv: Conv2d, num_kernels: int) -> None:
        super().__init__()
        positive_int('num_kernels', num_kernels)
        if num_kernels < 2:
            raise ValueError(f'num_kernels must be at least 2, got {num_kernels}')
        # Convolutions, so that whatever initialises the convolutions of a network reaches them.
        self.kernels = nn.ModuleList(
            Conv2d(
                conv.in_channels,
                conv.out_channels,
                conv.kernel_size,
                groups=conv.groups,
                bias=conv.bias is not None,
            )
            for _ in range(num_kernels - 1)
        )

    def of_one_image(self, x: Tensor) -> list[float]:
        """Return the K shares for ``x`` of shape ``(1, in_channels, H, W)``, not differentiated."""
        return self(x).tolist()[0]

    def start_from_copies(self) -> None:
        """Adjust what the shares begin with to kernels that are all the same."""


class SoftmaxShares(KernelShares):
    """Shares that add up to one, softmax(F(x) / temperature)."""

    mix = staticmethod(blend_in_turn)

    def __init__(
        self, conv: Conv2d, num_kernels: int, hidden_ratio: float, temperature: float
    ) -> None:
        super().__init__(conv, num_kernels)
        hidden = max(
            1, int(conv.in_channels * positive_number('hidden_ratio', hidden_ratio) + 1e-6)
        )
        self.fc1 = nn.Linear(conv.in_channels, hidden, bias=False)
        self.fc2 = nn.Linear(hidden, num_kernels)
        self.register_buffer(
            'temperature', torch.tensor(positive_number('temperature', temperature))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the shares ``(N, K)`` for ``x`` of shape ``(N, in_channels, H, W)``."""
        hidden = functional.relu(self.fc1(x.mean((2, 3))))
        return (self.fc2(hidden) / self.temperature).softmax(1)

    def of_one_image(self, x: Tensor) -> list[float]:
        fc1, fc2 = self._modules['fc1'], self._modules['fc2']
        if type(fc1) is not nn.Linear or type(fc2) is not nn.Linear or has_hooks(self, fc1, fc2):
            return super().of_one_image(x)
        of_fc1, of_fc2 = fc1._parameters, fc2._parameters
        # The factors of average and temperature come with the last product.
        by = 1 / self._buffers['temperature'].item()
        sums = x.sum((0, 2, 3))
        hidden = torch.mv(of_fc1['weight'], sums).relu_()
        alpha = by * sums.shape[0] / x.numel()
        logits = torch.addmv(of_fc2['bias'], of_fc2['weight'], hidden, beta=by, alpha=alpha)
        logits = logits.tolist()
        largest = max(logits)
        shares = [math.exp(logit - largest) for logit in logits]
        total = sum(shares)
        return [share / total for share in shares]


class SigmoidShares(KernelShares):
    """Shares independent of each other, sigmoid(R avg(x))."""

    def __init__(self, conv: Conv2d, num_kernels: int) -> None:
        super().__init__(conv, num_kernels)
        self.fc = nn.Linear(conv.in_channels, num_kernels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the shares ``(N, K)`` for ``x`` of shape ``(N, in_channels, H, W)``."""
        return self.fc(x.mean((2, 3))).sigmoid()

    def start_from_copies(self) -> None:
        with torch.no_grad():
            self.fc.bias.fill_(-math.log(len(self.kernels)))  # sigmoid gives 1 / K


class MixedConv:
    """Mixed into a :class:`Conv2d` whose child ``attention`` is a :class:`KernelShares`."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve each image of ``x``, ``(N, in_channels, H, W)``, with its own mixed kernel."""
        kernels = self.kernels_of_one_image(x)
        if kernels is not None:
            return self.convolve_one_image(x, kernels)
        shares = self.attention(x)
        if torch.compiler.is_exporting() and not self.pointwise:
            out = self._mix_outputs(x, shares.to(x.dtype))
            return out if self.offset is None else out + self.offset[:, None, None]
        return self._mix_kernels(x, shares)

    def kernels_of_one_image(self, x: Tensor) -> list[Tensor] | None:
        """Return the kernels if this is inference on one image on a CPU, else None.

        That takes as long to call as to compute. Factors then go where an operator multiplies
        anyway, nothing is put side by side, and parameters are looked up past
        ``nn.Module.__getattr__``, which takes a microsecond for each.

        Raises:
            ValueError: If ``x`` is not ``(N, in_channels, H, W)``.
        """
        check_input(self, x)
        if not one_image_at_inference(x, self._parameters.get('weight')):
            return None
        try:
            others = self._modules['attention']._modules['kernels']._modules.values()
            kernels = [conv._parameters['weight'] for conv in (self, *others)]
            biased = self._parameters['bias'] is not None
        except KeyError:  # a parametrized one, which has to be computed
            return None
        return None if biased else kernels

    def convolve_one_image(
        self, x: Tensor, kernels: list[Tensor], norm: _BatchNorm | None = None
    ) -> Tensor:
        """Convolve one image with its mixed kernel, and normalise if a norm follows.

        Args:
            x (Tensor): ``(1, in_channels, H, W)``.
            kernels (list[Tensor]): What :meth:`kernels_of_one_image` returned for it.
            norm (_BatchNorm, optional): A batch norm in eval mode. It becomes part of the kernel
                where that has fewer values for a channel than the map.
        """
        attention, offset = self._modules['attention'], self._parameters['offset']
        weight = attention.mix(attention.of_one_image(x), kernels)
        down = self.stride[0] * self.stride[1]
        map_size = x.shape[2] * x.shape[3] * self.out_channels
        folds = norm is not None and map_size >= down * weight.numel()
        if folds:
            factor, start = norm_factor_and_offset(norm)
            weight.mul_(factor[:, None, None, None])
            offset = start if offset is None else torch.addcmul(start, offset, factor)
        if self.pointwise:
            out = pointwise_convolution_of_one(x, weight, offset)
        else:
            out = self.convolve(x, weight, offset, self.groups)
        return out if norm is None or folds else norm(out)

    def fold_norm(self, norm: _BatchNorm) -> None:
        """Make the batch norm that follows part of every kernel; for inference only."""
        self.offset = nn.Parameter(self.fold_norm_into_weight(norm).clone())
        factor, _ = norm_factor_and_offset(norm)
        with torch.no_grad():
            for conv in self.attention.kernels:
                conv.weight.mul_(factor[:, None, None, None])
                if conv.bias is not None:
                    conv.bias.mul_(factor)

    def _mix_kernels(self, x: Tensor, shares: Tensor) -> Tensor:
        convs = (self, *self.attention.kernels)
        weight = mix_kernels(shares, [conv.weight for conv in convs])
        bias = None
        if self.bias is not None:
            bias = mix_kernels(shares, [conv.bias for conv in convs])
        if self.offset is not None:
            bias = self.offset.expand(x.shape[0], -1) if bias is None else bias + self.offset
        if self.pointwise:
            return pointwise_convolution_by_image(x, weight, bias)
        # (1, N C_in, H, W) with N groups: every image meets its own kernel and no other.
        batch = x.shape[0]
        if batch == 0:
            return self.trunk(x)
        out = self.convolve(
            x.reshape(1, -1, *x.shape[2:]),
            weight.flatten(0, 1),
            None if bias is None else bias.flatten(),
            batch * self.groups,
        )
        return out.reshape(batch, self.out_channels, *out.shape[2:])

    def _mix_outputs(self, x: Tensor, shares: Tensor) -> Tensor:
        # The number of groups of a convolution is fixed in an exported graph, and with it would be
        # the batch. A convolution is linear in its kernel, so the outputs may be mixed instead, at
        # K times the multiply-accumulates.
        convs = (self, *self.attention.kernels)
        outputs = [self.convolve(x, conv.weight, conv.bias, self.groups) for conv in convs]
        return sum(shares[:, k, None, None, None] * out for k, out in enumerate(outputs))

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        ours = f'{prefix}attention.'
        if f'{prefix}weight' in state_dict and not any(key.startswith(ours) for key in state_dict):
            self.start_as_plain()

    def start_as_plain(self) -> None:
        """Make all kernels copies of the first, which is what a plain checkpoint holds."""
        with torch.no_grad():
            for conv in self.attention.kernels:
                conv.weight.copy_(self.weight)
                if conv.bias is not None:
                    conv.bias.copy_(self.bias)
        self.attention.start_from_copies()


class DynamicConv2d(MixedConv, Conv2d):
    """Dynamic convolution: kernels mixed by a softmax with a large temperature.

    Args:
        in_channels (int): As in ``nn.Conv2d``, and so are ``out_channels``, ``kernel_size``,
            ``stride``, ``padding``, ``dilation``, ``groups``, ``bias`` and ``padding_mode``.
        num_kernels (int): Number K of kernels. Defaults to 4.
        hidden_ratio (float): Hidden units as a multiple of the *input* channels. Defaults to 1/4.
        temperature (float): Of the softmax. Defaults to 30; ``kronattn_mm.AnnealTemperature``
            lowers it over the first epochs, as the paper of dynamic convolution does.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range.
    """

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
        *,
        num_kernels: int = 4,
        hidden_ratio: float = 0.25,
        temperature: float = 30.0,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
        )
        self.attention = SoftmaxShares(self, num_kernels, hidden_ratio, temperature)
        self.register_parameter('offset', None)  # what a folded norm adds


class CondConv2d(MixedConv, Conv2d):
    """CondConv: kernels mixed by independent sigmoids.

    Args:
        in_channels (int): As in ``nn.Conv2d``, and so are ``out_channels``, ``kernel_size``,
            ``stride``, ``padding``, ``dilation``, ``groups``, ``bias`` and ``padding_mode``.
        num_kernels (int): Number of kernels. Defaults to 4; published runs have 4 and 8.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range.
    """

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
        *,
        num_kernels: int = 4,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
        )
        self.attention = SigmoidShares(self, num_kernels)
        self.register_parameter('offset', None)  # what a folded norm adds
