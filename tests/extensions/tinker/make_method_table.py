"""Writes what each method of Tinker's SDK does here into `docs/reference/tinker.md`.

python tests/extensions/tinker/make_method_table.py
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from method_table import PAGE, replaced, tables
from tinker_fixtures import TORCH, run_program, started


def main() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as folder, started(Path(folder)) as service:
        told = run_program(service, "every_method.py", TORCH)
    page = PAGE.read_text(encoding="utf-8")
    for part, table in tables(told).items():
        page = replaced(page, part, table)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
