#!/usr/bin/env python
"""What mAP comes of knowing nothing, for a set of untrimmed videos; --help says how."""

import sys

from kronattn_mm.evaluation.temporal_chance import main

if __name__ == '__main__':
    sys.exit(main())
