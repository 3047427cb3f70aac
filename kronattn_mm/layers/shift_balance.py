"""Shift-and-Balance: the attention branch is added to the trunk, with a learned factor.

Paper: "Shift-and-Balance Attention" (arXiv 2103.13080), equation 6, y = T(x) + lambda A(x), and
equation 7, A(x) = Tanh(F(x)), F being global average pooling and two fully connected layers.

Readings and deviations:

- lambda is one factor for each output channel (equation 14 counts c_out multiplications); one for
  the layer is an argument. It starts at 0.1 (section 5.1). Starting at 0 leaves a trained network
  exactly as it was.
- The paper does not say whether the sum comes before or after the trunk's norm. Before it is what
  a convolution type can do by itself, and the default; after it needs
  ``kronattn_mm.Plugged(convs=...)``, which knows the norm.
- Weight decay of lambda is not stated; it is a parameter like others here.

Cost beside the convolution, for one image (equations 16 and 17): c_in + c_in c_hid + c_hid c_out +
c_out multiplications, c_in h w + c_in c_hid + c_hid c_out + c_out h w additions.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .arguments import check_input, choice, finite_number, positive_int
from .attended_conv import BranchedConv, Conv2d, hidden_units
from .attention_branch import AttentionBranch, norm_factor_and_offset


class ShiftBranch(AttentionBranch):
    """The branch times its factor, lambda A(x).

    Args:
        in_channels (int): Channels of the input.
        hidden_channels (int): Hidden units.
        out_channels (int): Channels of the result.
        lambda_init (float): Initial value of lambda. Defaults to 0.1.
        lambda_per (str): ``'channel'`` or ``'layer'``. Defaults to ``'channel'``.
        gate, norm, bias, dropout, norm_eval: See
            :class:`~kronattn_mm.layers.attention_branch.AttentionBranch`.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        lambda_init: float = 0.1,
        lambda_per: str = 'channel',
        gate: str | None = 'tanh',
        norm: str | None = 'batch_norm',
        bias: bool = False,
        dropout: float = 0.0,
        norm_eval: bool = False,
    ) -> None:
        super().__init__(
            in_channels, hidden_channels, out_channels, gate, norm, bias, dropout, norm_eval
        )
        self.lambda_init = finite_number('lambda_init', lambda_init)
        choice('lambda_per', lambda_per, ('channel', 'layer'))
        factors = self.out_channels if lambda_per == 'channel' else 1
        # The word itself is taken by Python.
        self.lambda_ = nn.Parameter(torch.full((factors,), self.lambda_init))

    def forward(self, x: Tensor) -> Tensor:
        """Return lambda A(x), ``(N, out_channels)``, for ``x`` of shape ``(N, in_channels, *)``."""
        return self.lambda_ * super().forward(x)


class ShiftBalanceConv2d(BranchedConv, Conv2d):
    """A convolution whose output is shifted by attention to its input, y = T(x) + lambda A(x).

    Registered, so that ``conv_cfg=dict(type='kronattn_mm.ShiftBalanceConv2d')`` or ``convs`` of
    ``kronattn_mm.Plugged`` put it wherever a convolution is.

    Args:
        in_channels (int): Of the convolution T, as in ``nn.Conv2d``, and so are ``out_channels``,
            ``kernel_size``, ``stride``, ``padding``, ``dilation``, ``groups``, ``bias`` and
            ``padding_mode``.
        lambda_init (float): Initial value of lambda. Defaults to 0.1; with 0 the output is that of
            the plain convolution, bit for bit, until training moves it.
        lambda_per (str): One lambda for each ``'channel'`` or for the ``'layer'``. Defaults to
            ``'channel'``.
        hidden_ratio (float): Hidden units as a multiple of the output channels. Defaults to 1.
        depthwise_hidden_ratio (float): The same for depthwise convolutions. Defaults to 1/6.
        gate (str, optional): ``'tanh'``, ``'sigmoid'``, ``'softmax'``, ``'relu'`` or None.
            Defaults to ``'tanh'``.
        norm (str, optional): Norm after each fully connected layer, ``'batch_norm'``,
            ``'layer_norm'`` or None. Defaults to ``'batch_norm'``; what it does with one image in
            a batch is laid down in :mod:`kronattn_mm.layers.attention_branch`.
        dropout (float): Dropout in the hidden layer. Defaults to 0.
        norm_eval (bool): Never move the statistics of the branch's norms. Defaults to False.
        place (str): ``'before_norm'`` or ``'after_norm'``. Defaults to ``'before_norm'``.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range or not one of its choices.
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
        lambda_init: float = 0.1,
        lambda_per: str = 'channel',
        hidden_ratio: float = 1.0,
        depthwise_hidden_ratio: float = 1 / 6,
        gate: str | None = 'tanh',
        norm: str | None = 'batch_norm',
        dropout: float = 0.0,
        norm_eval: bool = False,
        place: str = 'before_norm',
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
        self.attention = ShiftBranch(
            self.in_channels,
            hidden_units(self, hidden_ratio, depthwise_hidden_ratio),
            self.out_channels,
            lambda_init,
            lambda_per,
            gate,
            norm,
            bias=norm is None,
            dropout=dropout,
            norm_eval=norm_eval,
        )
        self.set_place(place)

    def attend(self, x: Tensor, attention: Tensor) -> Tensor:
        """Return T(x) + lambda A(x); where T is a matrix product, it begins with lambda A(x)."""
        # Without a shift the result is that of the plain convolution, bit for bit.
        if attention.dtype == x.dtype and self.product_pays(x) and attention.any():
            return self.product(x, attention)
        return self.combine(self.trunk(x), attention)

    def combine(self, trunk: Tensor, attention: Tensor) -> Tensor:
        """Return T(x) + lambda A(x), in the dtype of the trunk."""
        if self.place == 'before_norm':
            # A convolution's backward does not need its output, so it may be written over: fresh
            # memory for a large map costs many times the addition.
            return trunk.add_(_over_positions(attention, trunk))
        return trunk + _over_positions(attention, trunk)

    def fold_norm(self, norm: _BatchNorm) -> None:
        """Make batch norms part of the weights: a (T + lambda A) + b = a T + b + (a lambda) A."""
        self.add_to_bias(self.fold_norm_into_weight(norm))
        self.attention.fold_norms()
        if self.place == 'before_norm':
            factor, _ = norm_factor_and_offset(norm)
            self.attention.lambda_ = nn.Parameter(self.attention.lambda_.detach() * factor)


class ShiftBalance2d(ShiftBranch):
    """Shift-and-Balance as a block, y = x + lambda A(x), that is T(x) = x.

    Args:
        in_channels (int): Channels of the input and of the output.
        hidden_channels (int, optional): Hidden units. Defaults to ``in_channels``.
        lambda_init (float): Initial value of lambda; 0 makes the block the identity until training
            moves it. Defaults to 0.1.
        lambda_per, gate, norm, dropout, norm_eval: See :class:`ShiftBalanceConv2d`.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range or not one of its choices.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int | None = None,
        lambda_init: float = 0.1,
        lambda_per: str = 'channel',
        gate: str | None = 'tanh',
        norm: str | None = 'batch_norm',
        dropout: float = 0.0,
        norm_eval: bool = False,
    ) -> None:
        positive_int('in_channels', in_channels)
        hidden_channels = in_channels if hidden_channels is None else hidden_channels
        super().__init__(
            in_channels,
            hidden_channels,
            in_channels,
            lambda_init,
            lambda_per,
            gate,
            norm,
            bias=norm is None,
            dropout=dropout,
            norm_eval=norm_eval,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return x + lambda A(x) for ``x`` of shape ``(N, in_channels, H, W)``."""
        check_input(self, x)
        return x + _over_positions(super().forward(x), x)

    def extra_repr(self) -> str:
        return f'in_channels={self.in_channels}, {super().extra_repr()}'


def _over_positions(amount: Tensor, x: Tensor) -> Tensor:
    # (N, C) -> (N, C, 1, 1) in the dtype of x, which lambda in float32 must not raise
    return amount.to(x.dtype)[:, :, None, None]
