"""The mathematics of the papers as pure functions of tensors; needs torch alone.

Tokens are in the last dimension and channels before them, as a convolution's output flattens.
"""

from .dot_product_attention import dot_product_attention
from .efficient_attention import efficient_attention, template_maps

__all__ = ['dot_product_attention', 'efficient_attention', 'template_maps']
