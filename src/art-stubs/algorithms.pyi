# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.batch.algorithms.combine import check_algorithm as check_algorithm
from art.batch.algorithms.combine import resolve as resolve
from art.batch.algorithms.table import DEFAULT as DEFAULT
from art.batch.algorithms.table import Row as Row
from art.batch.algorithms.table import TABLE as TABLE

__all__ = ["DEFAULT", "Row", "TABLE", "check_algorithm", "resolve"]

