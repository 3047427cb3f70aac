"""The commands: each is a module with a ``main``; ``kronattn`` and tools/ call the same ones."""
