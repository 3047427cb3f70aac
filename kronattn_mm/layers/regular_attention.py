"""Regular (dot-product) attention block: the non-local module that the papers compare with.

Papers: "Efficient Attention" (arXiv 1812.01243), section 3.1; "Kronecker Attention Networks"
(arXiv 2007.08442), equation 1 and, for ``pooling``, its AttnNet+Pool, where keys and values are
reduced by 2 x 2 pooling. Max pooling, as in the non-local networks it cites; the pooled map is
rounded up, so that a map of one row or column works too.

Cost for n positions, multiply-accumulates: n d (2 d_k + 2 d_v) + n^2 (d_k + d_v); with pooling
the second term is about a quarter.
"""

from torch import Tensor, nn

from ..ops import dot_product_attention
from .arguments import boolean
from .attention_block import AttentionBlock


class RegularAttention2d(AttentionBlock):
    """Dot-product attention over feature maps ``(N, C, H, W)``.

    Args:
        in_channels (int): Channels d of the input, which are those of the output too.
        key_channels (int): Channels d_k of queries and keys, all heads together. Defaults to 64.
        value_channels (int): Channels d_v of the values, all heads together. Defaults to 64.
        num_heads (int): Heads among which key and value channels are divided. Defaults to 1.
        normalization (str): ``'softmax'`` or ``'scaling'`` (EA paper, equation 2).
        zero_init (bool): Start with a reprojection of zero (identity). Defaults to True.
        pooling (bool): Reduce keys and values by 2 x 2 max pooling. Defaults to False.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range or the heads do not divide the channels.
    """

    spatial_dims = 2

    def __init__(
        self,
        in_channels: int,
        key_channels: int = 64,
        value_channels: int = 64,
        num_heads: int = 1,
        normalization: str = 'softmax',
        zero_init: bool = True,
        pooling: bool = False,
    ) -> None:
        super().__init__(
            in_channels, key_channels, value_channels, num_heads, normalization, zero_init
        )
        self.pooling = boolean('pooling', pooling)
        self.pool = nn.MaxPool2d(2, ceil_mode=True) if pooling else nn.Identity()

    def attend(self, query: Tensor, x: Tensor) -> Tensor:
        key = self._split_heads(self.pool(self.keys(x)))
        value = self._split_heads(self.pool(self.values(x)))
        return dot_product_attention(query, key, value, self.normalization)

    def extra_repr(self) -> str:
        return f'{super().extra_repr()}, pooling={self.pooling}'
