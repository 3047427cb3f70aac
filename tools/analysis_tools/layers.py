#!/usr/bin/env python
"""`kronattn layers` as a script; --help says what it does."""

import sys

from kronattn_mm.cli.layers import main

if __name__ == '__main__':
    sys.exit(main())
