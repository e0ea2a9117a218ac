"""Named algorithms: a table of combinations, their merging with parts, and what fits what. No torch here.

>>> resolve("dapo", kl={"coefficient": 0.001}).loss.params
{'epsilon': 0.2, 'epsilon_high': 0.28}
"""

from __future__ import annotations

from art.batch.algorithms.combine import check_algorithm, resolve
from art.batch.algorithms.table import DEFAULT, TABLE, Row

__all__ = ["DEFAULT", "TABLE", "Row", "check_algorithm", "resolve"]
