#!/usr/bin/env python
"""`kronattn summary` as a script; --help says what it does."""

import sys

from kronattn_mm.cli.summary import main

if __name__ == '__main__':
    sys.exit(main())
