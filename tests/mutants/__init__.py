"""``python -m tests.mutants MODULE``: break a module in small ways, and see which of its tests fail."""
