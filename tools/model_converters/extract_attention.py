#!/usr/bin/env python
"""`kronattn extract` as a script; --help says what it does."""

import sys

from kronattn_mm.cli.extract import main

if __name__ == '__main__':
    sys.exit(main())
