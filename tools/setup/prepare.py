"""Makes or repairs an environment of this checkout, by default ``.venv``; run by ``make``.

Everything it writes lies in there. It runs before anything is installed and needs nothing but
the standard library. This file alone must also be readable for Pythons that are too old, so that
they get the message below and not a syntax error.
"""

import sys

SUPPORTED = ((3, 10), (3, 12))


def refuse_python(version_info):
    """Returns the message for an interpreter that cannot be used, or None."""
    if SUPPORTED[0] <= tuple(version_info[:2]) <= SUPPORTED[1]:
        return None
    return (
        'kronattn_mm needs Python 3.10, 3.11 or 3.12, and this is Python %d.%d (%s).\n'
        'Name another one: make setup PYTHON=python3.11'
        % (version_info[0], version_info[1], sys.executable)
    )


if __name__ == '__main__':
    refusal = refuse_python(sys.version_info)
    if refusal:
        sys.exit(refusal)
    import steps

    sys.exit(steps.main())
