# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.compat.benchmarking import benchmark_rollout as benchmark_rollout

__all__ = ["benchmark_rollout"]

