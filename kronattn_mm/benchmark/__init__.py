"""Operators side by side: multiply-adds, memory and time in one run.

:mod:`.measure` measures any function; :mod:`.comparison` puts operators, input sizes and what a
paper printed together; :mod:`.kronecker` has Table 2 of the Kronecker paper. Another table is one
more :class:`Comparison` in ``PAPER_TABLES``.
"""

from .comparison import Comparison, Measured, Operator, Row, compare
from .kronecker import TABLE_2
from .measure import keep_freed_memory, peak_memory, time_interleaved

PAPER_TABLES: dict[str, Comparison] = {'kao': TABLE_2}

__all__ = [
    'PAPER_TABLES',
    'Comparison',
    'Measured',
    'Operator',
    'Row',
    'compare',
    'keep_freed_memory',
    'peak_memory',
    'time_interleaved',
]
