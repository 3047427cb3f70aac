#!/usr/bin/env python
"""`kronattn convert attention` as a script; --help says what it does."""

import sys

from kronattn_mm.converters.commands.reference_attention import main

if __name__ == '__main__':
    sys.exit(main())
