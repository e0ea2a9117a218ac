"""docs/guides/hardware.md is what its command prints."""

from __future__ import annotations

import pytest
from make_hardware_page import PAGE, printed


@pytest.mark.slow
def test_the_tables_are_what_the_memory_plan_says() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == printed(page), "run python tests/promises/docs/make_hardware_page.py"
    for wrong in (page.replace("| 64 | 8,192 |", "| 64 | 8,192 | 1.0 |"), page.replace("| vllm | 16 |", "|")):
        assert wrong != page and printed(wrong) == page
