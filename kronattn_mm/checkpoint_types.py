"""What mmengine's checkpoints hold beside tensors, for torch's list of types that it may read.

Since version 2.6 torch reads tensors and a few harmless types only (``weights_only``). mmengine
keeps the log of a training in its checkpoints: numpy arrays in a class of its own, the
``HistoryBuffer``. The maintained fork allows them when it reads a checkpoint; mmengine 0.10.7
does not, so there it can neither resume, nor test, nor start from what it wrote itself.
"""

import pickle
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner import checkpoint as mmengine_checkpoint
from mmengine.utils import digit_version


def knows_allowed_types() -> bool:
    """Whether the installed torch has a list of types that ``weights_only`` may read."""
    return digit_version(torch.__version__) >= digit_version('2.6')


def allow_own_checkpoints() -> None:
    """Let an mmengine that cannot do so by itself read its own checkpoints.

    The types go onto torch's list for this process, ``torch.serialization.add_safe_globals``;
    files with anything else in them are refused as before.
    """
    if knows_allowed_types() and not hasattr(mmengine_checkpoint, '_safe_torch_load'):
        torch.serialization.add_safe_globals(allowed_types())


def allowed_types() -> list[Any]:
    """Return what a log of mmengine consists of, for torch's ``safe_globals``.

    It is what ``mmengine.runner.checkpoint`` of the fork allows, but for ``getattr``: a log names
    its own statistics with it, and those alone are allowed here.
    """
    core = np._core if hasattr(np, '_core') else np.core
    kinds = [
        type(np.dtype(name))
        for name in ('bool', 'int32', 'int64', 'uint32', 'float32', 'float64', 'U', 'S')
    ]
    return [
        HistoryBuffer,
        np.ndarray,
        np.dtype,
        slice,
        *dict.fromkeys(kinds),
        core.multiarray._reconstruct,
        core.multiarray.scalar,
        # Both names that numpy has had for it: a file says the one of its writer.
        *(
            (function, f'{module}.multiarray.{name}')
            for name, function in (
                ('_reconstruct', core.multiarray._reconstruct),
                ('scalar', core.multiarray.scalar),
            )
            for module in ('numpy.core', 'numpy._core')
        ),
        (_statistic, 'builtins.getattr'),
    ]


def _statistic(owner: type, name: str) -> Any:
    """Stand in for ``getattr``, with which a log of mmengine names its own statistics.

    ``getattr`` itself would let a file reach any attribute of anything that is allowed.
    """
    if owner is not HistoryBuffer or name not in ('min', 'max', 'mean', 'current'):
        raise pickle.UnpicklingError(f'GLOBAL builtins.getattr of {name!r}')
    return getattr(owner, name)
