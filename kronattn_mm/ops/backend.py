"""Which implementation of an operator runs.

- ``reference`` is the straightforward form, which reads like the equations;
- ``torch`` the one that gives the same result in fewer passes;
- ``triton`` the same in kernels of its own, for operators that have some (:mod:`.triton`);
  others run as with ``torch``. What a kernel does not support is an error;
- ``auto``, the default, takes the fastest of them that supports the input.

The environment variable ``KRONATTN_BACKEND`` chooses for a process, :func:`use_backend` for a block
of code. What runs, and why nothing faster does, is logged once for each operator (logger
``kronattn_mm``, level INFO).
"""

import contextlib
import logging
import os
from collections.abc import Iterator

from .triton.availability import missing

BACKENDS = ('auto', 'torch', 'triton', 'reference')
_VARIABLE = 'KRONATTN_BACKEND'
_chosen: list[str] = []
_told: set[str] = set()


def backend() -> str:
    """Return the backend that is in force.

    Raises:
        ValueError: If the environment variable has another value.
        RuntimeError: If it is ``'triton'`` and something that Triton needs is missing.
    """
    if _chosen:
        return _chosen[-1]
    name = os.environ.get(_VARIABLE)
    if name is None:
        return 'auto'
    _check(name, _VARIABLE)
    if name != 'auto':
        _log_once(f'attention operators: backend {name}, from {_VARIABLE}')
    return name


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Have a backend in force inside, and the former one afterwards.

    Args:
        name (str): ``'auto'``, ``'torch'``, ``'triton'`` or ``'reference'``.

    Raises:
        ValueError: If ``name`` is another.
        RuntimeError: If it is ``'triton'`` and something that Triton needs is missing.
    """
    _check(name, 'backend')
    if name != 'auto':
        _log_once(f'attention operators: backend {name}')
    _chosen.append(name)
    try:
        yield
    finally:
        _chosen.pop()


def tell(operator: str, form: str, reason: str = '') -> None:
    """Log, once, in which form an operator runs.

    Args:
        operator (str): The operator's name.
        form (str): The form that was taken.
        reason (str): Why, where that is not plain from the backend in force.
    """
    _log_once(f'{operator}: {form}{f" ({reason})" if reason else ""}')


def _log_once(message: str) -> None:
    if message not in _told:
        _told.add(message)
        logging.getLogger('kronattn_mm').info(message)


def _check(name: str, what: str) -> None:
    if name not in BACKENDS:
        raise ValueError(f'{what} must be one of {", ".join(map(repr, BACKENDS))}, got {name!r}')
    reason = missing() if name == 'triton' else None
    if reason is not None:
        raise RuntimeError(f"{what} 'triton' cannot be used: {reason}")
