"""Comparisons that train several networks under one recipe and lay the results side by side.

:mod:`.arms` says what is compared, :mod:`.runs` trains, :mod:`.summary` adds up, and
:mod:`.claims` holds what the paper says about the order of the results.
"""

from .arms import VARIANTS, Arm, expand_arms
from .runs import Recipe, Run, StudyError, prepare_data, train_run
from .summary import summarize

__all__ = [
    'VARIANTS',
    'Arm',
    'Recipe',
    'Run',
    'StudyError',
    'expand_arms',
    'prepare_data',
    'summarize',
    'train_run',
]
