#!/usr/bin/env python
"""`kronattn support` as a script; --help says what it does."""

import sys

from kronattn_mm.cli.support import main

if __name__ == '__main__':
    sys.exit(main())
