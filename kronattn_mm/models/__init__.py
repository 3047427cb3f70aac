"""Whole architectures; each module needs the library that its base classes come from."""
