#!/usr/bin/env python
"""`kronattn bench` as a script; --help says what it does."""

import sys

from kronattn_mm.cli.bench import main

if __name__ == '__main__':
    sys.exit(main())
