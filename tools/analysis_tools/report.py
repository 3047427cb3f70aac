#!/usr/bin/env python
"""`kronattn report` as a script; --help says what it does."""

import sys

from kronattn_mm.cli.report import main

if __name__ == '__main__':
    sys.exit(main())
