"""What attention costs: in the papers' accounting, and as this implementation executes it.

:mod:`.paper`, :mod:`.competing`, :mod:`.kronecker` and :mod:`.shift_balance` hold the papers'
formulae, one small function each; :mod:`.layers` reads their arguments off a built layer;
:mod:`.executed` counts what a layer really does. These need torch alone. :mod:`.report` and
:mod:`.config` put them together for a model of the OpenMMLab libraries.
"""

from .executed import ExecutedCost, executed_cost
from .layers import layer_cost
from .paper import METHODS, PaperCost, paper_cost

__all__ = ['METHODS', 'ExecutedCost', 'PaperCost', 'executed_cost', 'layer_cost', 'paper_cost']
