#!/usr/bin/env python
"""`kronattn attach` as a script; --help says what it does."""

import sys

from kronattn_mm.cli.attach import main

if __name__ == '__main__':
    sys.exit(main())
