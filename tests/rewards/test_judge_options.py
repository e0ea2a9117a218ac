"""How a judge is asked: the same keywords for every reward that has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from art import rewards
from art.errors import ConfigurationError
from art.rewards import Ruler
from art.rewards.llm import Budget

KINDS: list[Any] = [
    pytest.param(Ruler, id="ruler"),
    pytest.param(
        lambda judge, **options: rewards.Pairwise(judge, **options),
        id="pairwise",
        marks=pytest.mark.extension,
    ),
    pytest.param(
        lambda judge, **options: rewards.Rubric({"good": "It is."}, judge, **options),
        id="rubric",
        marks=pytest.mark.extension,
    ),
]


@pytest.mark.parametrize("kind", KINDS)
def test_options_act_or_are_refused(kind: Any, tmp_path: Path) -> None:
    where, budget = "http://127.0.0.1:9/v1", Budget(calls=3)
    channel = kind("judge", base_url=where, budget=budget, cache=tmp_path / "kept", attempts=2).channel
    assert channel.llm.name == "judge" and channel.budget is budget and channel.attempts == 2
    assert channel.cache is not None and kind("judge", base_url=where, cache=False).channel.cache is None
    with pytest.raises(ConfigurationError, match=r"budgets is no option .*did you mean 'budget'.*deadline"):
        kind("judge", base_url=where, budgets=3)
