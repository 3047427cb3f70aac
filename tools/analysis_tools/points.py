#!/usr/bin/env python
"""`kronattn points` as a script; --help says what it does."""

import sys

from kronattn_mm.cli.points import main

if __name__ == '__main__':
    sys.exit(main())
