"""The commands of :mod:`kronattn_mm.converters`: ``kronattn convert KIND`` and scripts alike."""
