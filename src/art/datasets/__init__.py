"""Data sets: examples in files, in batches and chunks, at rates."""
