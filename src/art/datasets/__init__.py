"""Data sets: examples in files, in batches, at rates. Nothing here imports more than the standard library."""
