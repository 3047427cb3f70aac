"""The accounting of "Shift-and-Balance Attention": multiplications, additions, extra parameters.

Paper: "Shift-and-Balance Attention" (arXiv 2103.13080), section 4, equations 10 to 17, for one
image. It counts what the attention adds to the convolution, and multiplications and additions
apart:

=========================  ===============================================  ====================
                           multiplications                                  additions
=========================  ===============================================  ====================
average       (10, 11)     c_in                                             c_in h w
two layers    (12, 13)     c_in c_hid + c_hid c_out                         the same
shift         (14, 15)     c_out                                            c_out h w
sum           (16, 17)     c_in + c_in c_hid + c_hid c_out + c_out          c_in h w + c_in c_hid
                                                                            + c_hid c_out + c_out
                                                                            h w
=========================  ===============================================  ====================

Scaled attention differs in the last step: c_out h w multiplications and no addition. Norms and
gates cost nothing, as they "can be fused at inference time or take little cost". For dynamic
convolution the paper counts the auxiliary network only: the average and c_in c_hid + c_hid K,
c_in K for CondConv; mixing the kernels is left out.

Extensions: with a stride, h w is that of the input in the average and that of the output in the
last step. Parameters are the weights of the two layers, the norms after them and lambda; for
dynamic convolution the K - 1 further kernels too. :class:`~.paper.PaperCost` has one number for
computation; it holds the multiplications, which is what the paper's MAdds come from. The paper
counts no memory, which is 0 here.
"""

from dataclasses import dataclass

from .paper import PaperCost, check_positive, method


@dataclass(frozen=True)
class Operations:
    """Multiplications and additions that attention adds to a convolution, for one image."""

    multiplies: int
    adds: int


def shift_balance_operations(
    *,
    in_channels: int,
    hidden_channels: int,
    out_channels: int,
    positions: int,
    out_positions: int | None = None,
) -> Operations:
    """Return equations 16 and 17.

    Args:
        in_channels (int): Channels c_in of the convolution's input.
        hidden_channels (int): Hidden units c_hid.
        out_channels (int): Channels c_out of its output.
        positions (int): Positions h w of the input.
        out_positions (int, optional): Those of the output. Defaults to the input's.

    Raises:
        ValueError: If a size is not a positive integer.
    """
    out_positions = positions if out_positions is None else out_positions
    check_positive(
        in_channels=in_channels,
        hidden_channels=hidden_channels,
        out_channels=out_channels,
        positions=positions,
        out_positions=out_positions,
    )
    layers = in_channels * hidden_channels + hidden_channels * out_channels
    return Operations(
        in_channels + layers + out_channels,
        in_channels * positions + layers + out_channels * out_positions,
    )


def scaled_attention_operations(
    *,
    in_channels: int,
    hidden_channels: int,
    out_channels: int,
    positions: int,
    out_positions: int | None = None,
) -> Operations:
    """Return the same for scaled attention; see :func:`shift_balance_operations`."""
    shifted = shift_balance_operations(
        in_channels=in_channels,
        hidden_channels=hidden_channels,
        out_channels=out_channels,
        positions=positions,
        out_positions=out_positions,
    )
    product = out_channels * (positions if out_positions is None else out_positions)
    return Operations(shifted.multiplies - out_channels + product, shifted.adds - product)


@method
def shift_balance(
    *,
    in_channels: int,
    hidden_channels: int,
    out_channels: int,
    positions: int,
    out_positions: int | None = None,
    extra_params: int | None = None,
) -> PaperCost:
    """Cost that Shift-and-Balance adds to a convolution, for one image.

    Args:
        in_channels (int): Channels c_in of the convolution's input.
        hidden_channels (int): Hidden units c_hid.
        out_channels (int): Channels c_out of its output.
        positions (int): Positions h w of the input.
        out_positions (int, optional): Those of the output. Defaults to the input's.
        extra_params (int, optional): Parameters of norms, biases and lambda. Defaults to those of
            the paper's layer: two norms without biases before them, and c_out for lambda.

    Raises:
        ValueError: If a size is not a positive integer.
    """
    cost = shift_balance_operations(
        in_channels=in_channels,
        hidden_channels=hidden_channels,
        out_channels=out_channels,
        positions=positions,
        out_positions=out_positions,
    )
    if extra_params is None:
        extra_params = 2 * hidden_channels + 3 * out_channels
    return PaperCost((in_channels + out_channels) * hidden_channels + extra_params, cost.multiplies)


@method
def scaled_attention(
    *,
    in_channels: int,
    hidden_channels: int,
    out_channels: int,
    positions: int,
    out_positions: int | None = None,
    extra_params: int | None = None,
) -> PaperCost:
    """Cost that scaled attention adds to a convolution or, as a block, to nothing.

    The arguments are those of :func:`shift_balance`; without lambda, ``extra_params`` defaults to
    the two norms alone.
    """
    cost = scaled_attention_operations(
        in_channels=in_channels,
        hidden_channels=hidden_channels,
        out_channels=out_channels,
        positions=positions,
        out_positions=out_positions,
    )
    if extra_params is None:
        extra_params = 2 * hidden_channels + 2 * out_channels
    return PaperCost((in_channels + out_channels) * hidden_channels + extra_params, cost.multiplies)


@method
def dynamic_conv(
    *, in_channels: int, hidden_channels: int, num_kernels: int, kernel_params: int
) -> PaperCost:
    """Cost that dynamic convolution adds to a convolution, for one image.

    Args:
        in_channels (int): Channels c_in of the input.
        hidden_channels (int): Hidden units of the auxiliary network.
        num_kernels (int): Kernels K.
        kernel_params (int): Parameters of one kernel, its bias included.

    Raises:
        ValueError: If a size is not a positive integer.
    """
    check_positive(
        in_channels=in_channels,
        hidden_channels=hidden_channels,
        num_kernels=num_kernels,
        kernel_params=kernel_params,
    )
    layers = (in_channels + num_kernels) * hidden_channels
    return PaperCost((num_kernels - 1) * kernel_params + layers + num_kernels, in_channels + layers)


@method
def cond_conv(*, in_channels: int, num_kernels: int, kernel_params: int) -> PaperCost:
    """Cost that CondConv adds to a convolution; the arguments are those of :func:`dynamic_conv`."""
    check_positive(in_channels=in_channels, num_kernels=num_kernels, kernel_params=kernel_params)
    return PaperCost(
        (num_kernels - 1) * kernel_params + (in_channels + 1) * num_kernels,
        in_channels + in_channels * num_kernels,
    )
