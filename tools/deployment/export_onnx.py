#!/usr/bin/env python
"""`kronattn export` as a script; --help says what it does."""

import sys

from kronattn_mm.cli.export import main

if __name__ == '__main__':
    sys.exit(main())
