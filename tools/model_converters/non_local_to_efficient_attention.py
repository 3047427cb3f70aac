#!/usr/bin/env python
"""`kronattn convert non-local` as a script; --help says what it does."""

import sys

from kronattn_mm.converters.commands.non_local import main

if __name__ == '__main__':
    sys.exit(main())
