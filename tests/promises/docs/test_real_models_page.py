"""docs/guides/real-models.md is what its command prints."""

from __future__ import annotations

import pytest
from make_real_models_page import PAGE, STEPS, printed


@pytest.mark.slow
def test_the_tables_are_what_the_memory_plan_says() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == printed(page), "run python tests/promises/docs/make_real_models_page.py"
    wrong = page.replace("| Qwen3-8B | vllm |", "| Qwen3-8B | builtin |")
    assert wrong != page and printed(wrong) == page


def test_a_step_counts_the_shared_prompt_once() -> None:
    one, *_, agent = STEPS
    assert one.tree == 16 * (256 + 8 * 256) and one.context == 512
    assert agent.sampled == 8 * 256 + 7 * 512 and agent.context == 8192
