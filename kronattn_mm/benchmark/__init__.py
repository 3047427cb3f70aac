"""Layers, operators and networks side by side: multiply-adds, memory and time in one run.

:mod:`.measure` measures any function. :mod:`.contest` puts functions that do the same in turns and
holds their ratios against bars; :mod:`.contests` has what docs/performance.md promises, and another
comparison there is one more :class:`Contest`; :mod:`.rivals` puts any layer against what a user
would take in its place; :mod:`.models` compares networks. :mod:`.comparison` puts operators, input
sizes and what a paper printed together, :mod:`.kronecker` Table 2 of the Kronecker paper; another
such table is one more :class:`Comparison` in ``PAPER_TABLES``.
"""

from .comparison import Comparison, Measured, Operator, Row, compare
from .contest import Bar, Contest, Contestant, Entry, Needs, judge, run_contest
from .contests import CONTESTS
from .kronecker import TABLE_2
from .measure import keep_freed_memory, peak_memory, return_freed_memory, time_interleaved

PAPER_TABLES: dict[str, Comparison] = {'kao': TABLE_2}

__all__ = [
    'CONTESTS',
    'PAPER_TABLES',
    'Bar',
    'Comparison',
    'Contest',
    'Contestant',
    'Entry',
    'Measured',
    'Needs',
    'Operator',
    'Row',
    'compare',
    'judge',
    'keep_freed_memory',
    'peak_memory',
    'return_freed_memory',
    'run_contest',
    'time_interleaved',
]
