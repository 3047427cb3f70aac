#!/usr/bin/env python
"""`kronattn ablate` as a script; --help says what it does."""

import sys

from kronattn_mm.cli.ablate import main

if __name__ == '__main__':
    sys.exit(main())
