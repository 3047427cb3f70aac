#!/usr/bin/env python
"""`kronattn cost` as a script; --help says what it does."""

import sys

from kronattn_mm.cli.cost import main

if __name__ == '__main__':
    sys.exit(main())
