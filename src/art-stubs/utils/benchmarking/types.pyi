# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.runs.benchmarking import BenchmarkModelKey as BenchmarkModelKey

__all__ = ["BenchmarkModelKey"]

