#!/usr/bin/env python
"""`kronattn show` as a script; --help says what it does."""

import sys

from kronattn_mm.cli.show import main

if __name__ == '__main__':
    sys.exit(main())
