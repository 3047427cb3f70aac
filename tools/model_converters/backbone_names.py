#!/usr/bin/env python
"""`kronattn convert backbone` as a script; --help says what it does."""

import sys

from kronattn_mm.converters.commands.backbone import main

if __name__ == '__main__':
    sys.exit(main())
