"""``python -m kronattn_mm COMMAND`` is ``kronattn`` where that script is not on the path."""

import sys

from .cli.command import main

if __name__ == '__main__':
    sys.exit(main())
