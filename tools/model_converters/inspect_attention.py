#!/usr/bin/env python
"""`kronattn inspect` as a script; --help says what it does."""

import sys

from kronattn_mm.cli.inspect_file import main

if __name__ == '__main__':
    sys.exit(main())
