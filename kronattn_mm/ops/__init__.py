"""The mathematics of the papers as pure functions of tensors; needs torch alone.

Tokens are in the last dimension and channels before them, as a convolution's output flattens.
"""

from .backend import use_backend
from .dot_product_attention import dot_product_attention
from .efficient_attention import efficient_attention, template_maps
from .kronecker import axis_averages, outer_sum
from .mixed_conv import mix_kernels, pointwise_convolution_by_image

__all__ = [
    'axis_averages',
    'dot_product_attention',
    'efficient_attention',
    'mix_kernels',
    'outer_sum',
    'pointwise_convolution_by_image',
    'template_maps',
    'use_backend',
]
