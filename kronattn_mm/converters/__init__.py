"""Bring trained weights to other names, or from one kind of attention to another.

Every converter maps a state dict to a :class:`Conversion`, which knows what became of every key;
the commands around them are in :mod:`.commands`.
"""

from .checkpoint import Checkpoint, ConversionError, read_checkpoint, write_checkpoint
from .conversion import Conversion

__all__ = ['Checkpoint', 'Conversion', 'ConversionError', 'read_checkpoint', 'write_checkpoint']
