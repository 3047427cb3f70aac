#!/usr/bin/env python
"""`kronattn strip` as a script; --help says what it does."""

import sys

from kronattn_mm.cli.strip import main

if __name__ == '__main__':
    sys.exit(main())
