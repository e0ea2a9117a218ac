# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.compat.benchmarking import log_constant_metrics_wandb as log_constant_metrics_wandb

__all__ = ["log_constant_metrics_wandb"]

