"""Which implementation of an operator runs.

``reference`` is the straightforward form, which reads like the equations; ``torch`` the one that
gives the same result in fewer passes; ``auto``, the default, the faster of them. The environment
variable ``KRONATTN_BACKEND`` chooses for a process, :func:`use_backend` for a block of code.
"""

import contextlib
import logging
import os
from collections.abc import Iterator

BACKENDS = ('auto', 'torch', 'reference')
_VARIABLE = 'KRONATTN_BACKEND'
_chosen: list[str] = []
_told: set[str] = set()


def backend() -> str:
    """Return the backend that is in force.

    Raises:
        ValueError: If the environment variable has another value.
    """
    name = _chosen[-1] if _chosen else os.environ.get(_VARIABLE, 'auto')
    _check(name, _VARIABLE)
    if name != 'auto' and name not in _told:
        _told.add(name)
        logging.getLogger('kronattn_mm').info('attention operators: backend %s', name)
    return name


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Have a backend in force inside, and the former one afterwards.

    Args:
        name (str): ``'auto'``, ``'torch'`` or ``'reference'``.

    Raises:
        ValueError: If ``name`` is another.
    """
    _check(name, 'backend')
    _chosen.append(name)
    try:
        yield
    finally:
        _chosen.pop()


def _check(name: str, what: str) -> None:
    if name not in BACKENDS:
        raise ValueError(f'{what} must be one of {", ".join(map(repr, BACKENDS))}, got {name!r}')
