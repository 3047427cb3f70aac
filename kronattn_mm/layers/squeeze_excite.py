"""Scaled attention: the attention branch multiplies the trunk (Squeeze-and-Excite).

Paper: "Shift-and-Balance Attention" (arXiv 2103.13080), equation 1, y = A(x) T(x), and equation 2,
A(x) = Sigmoid(F(x)). It compares Shift-and-Balance with two forms: block-wise, T(x) = x, after the
bottlenecks as in "Squeeze-and-Excitation Networks" (arXiv 1709.01507), and in each convolution,
where A reads the convolution's input.

Readings and deviations: in a convolution the branch is that of Shift-and-Balance, batch norms
included, so that the two differ in nothing but the product and lambda (section 5.1: "little extra
parameters caused by the control factor"). The block has no norm, as in the original, and its
hidden units are c_out (section 5.1) where the original has c_out / 16.

Unlike Shift-and-Balance it cannot start as the identity: a sigmoid of zero is one half.

Cost beside the trunk, for one image: as Shift-and-Balance, with the addition of c_out h w values a
multiplication, and none by lambda.
"""

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .arguments import boolean, check_input, positive_int
from .attended_conv import BranchedConv, Conv2d, hidden_units
from .attention_branch import AttentionBranch


class SqueezeExciteConv2d(BranchedConv, Conv2d):
    """A convolution whose output is scaled by attention to its input, y = A(x) T(x).

    Args:
        in_channels (int): Of the convolution T, as in ``nn.Conv2d``, and so are ``out_channels``,
            ``kernel_size``, ``stride``, ``padding``, ``dilation``, ``groups``, ``bias`` and
            ``padding_mode``.
        hidden_ratio (float): Hidden units as a multiple of the output channels. Defaults to 1.
        depthwise_hidden_ratio (float): The same for depthwise convolutions. Defaults to 1/6.
        gate (str, optional): ``'sigmoid'``, ``'tanh'``, ``'softmax'``, ``'relu'`` or None. The
            paper found that only the sigmoid trains when all convolutions have one. Defaults to
            ``'sigmoid'``.
        norm (str, optional): ``'batch_norm'``, ``'layer_norm'`` or None after each fully connected
            layer. Defaults to ``'batch_norm'``.
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
        hidden_ratio: float = 1.0,
        depthwise_hidden_ratio: float = 1 / 6,
        gate: str | None = 'sigmoid',
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
        self.attention = AttentionBranch(
            self.in_channels,
            hidden_units(self, hidden_ratio, depthwise_hidden_ratio),
            self.out_channels,
            gate,
            norm,
            bias=norm is None,
            dropout=dropout,
            norm_eval=norm_eval,
        )
        # What a folded norm adds after the product; there is none before that.
        self.register_parameter('offset', None)
        self.set_place(place)

    def combine(self, trunk: Tensor, attention: Tensor) -> Tensor:
        """Return A(x) T(x), in the dtype of the trunk."""
        attention = attention.to(trunk.dtype)[:, :, None, None]
        if trunk.requires_grad or attention.requires_grad or self.place == 'after_norm':
            scaled = trunk * attention  # the product's backward needs both
        else:
            scaled = trunk.mul_(attention)
        return scaled if self.offset is None else scaled + self.offset[:, None, None]

    def fold_norm(self, norm: _BatchNorm) -> None:
        """Make batch norms part of the weights: a (A T) + b = A (a T) + b."""
        offset = self.fold_norm_into_weight(norm)
        self.attention.fold_norms()
        if self.place == 'before_norm':
            self.offset = nn.Parameter(offset.clone())
        else:
            self.add_to_bias(offset)


class SqueezeExcite2d(AttentionBranch):
    """Squeeze-and-Excite as a block, y = A(x) x.

    Args:
        in_channels (int): Channels of the input and of the output.
        hidden_channels (int, optional): Hidden units. Defaults to ``in_channels``.
        gate, norm, dropout, norm_eval: See :class:`SqueezeExciteConv2d`; the norm defaults to None.
        bias (bool): Give the fully connected layers a bias. Defaults to False.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range or not one of its choices.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int | None = None,
        gate: str | None = 'sigmoid',
        norm: str | None = None,
        bias: bool = False,
        dropout: float = 0.0,
        norm_eval: bool = False,
    ) -> None:
        positive_int('in_channels', in_channels)
        hidden_channels = in_channels if hidden_channels is None else hidden_channels
        super().__init__(
            in_channels,
            hidden_channels,
            in_channels,
            gate,
            norm,
            boolean('bias', bias),
            dropout,
            norm_eval,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return A(x) x for ``x`` of shape ``(N, in_channels, H, W)``."""
        check_input(self, x)
        return x * super().forward(x).to(x.dtype)[:, :, None, None]

    def extra_repr(self) -> str:
        return f'in_channels={self.in_channels}, {super().extra_repr()}'
