"""What docs/performance.md measures: one module a subject, one :class:`Contest` a comparison.

Another comparison is one more :class:`Contest` in a module here and in ``CONTESTS``; its bars, its
lines in the tables and its part of the data follow from it.
"""

from .attended_convs import ATTENDED_CONVS
from .detector import DETECTOR
from .efficient_attention import EFFICIENT_ATTENTION
from .kronecker import KRONECKER

CONTESTS = (*EFFICIENT_ATTENTION, *KRONECKER, *ATTENDED_CONVS, *DETECTOR)

__all__ = ['CONTESTS']
