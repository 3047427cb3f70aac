"""The mathematics of the papers as pure functions of tensors; needs torch alone.

Tokens are in the last dimension and channels before them, as a convolution's output flattens.
"""

from .backend import use_backend
from .compact_non_local import compact_non_local
from .dot_product_attention import dot_product_attention
from .efficient_attention import efficient_attention, template_maps
from .gradient_layout import contiguous_gradient
from .kronecker import axis_averages, outer_sum
from .latent_graph import latent_message_passing
from .mixed_conv import mix_kernels, pointwise_convolution_by_image

__all__ = [
    'axis_averages',
    'compact_non_local',
    'contiguous_gradient',
    'dot_product_attention',
    'efficient_attention',
    'latent_message_passing',
    'mix_kernels',
    'outer_sum',
    'pointwise_convolution_by_image',
    'template_maps',
    'use_backend',
]
