"""litellm's prices, with and without litellm: it is never loaded for one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from art.errors import ConfigurationError
from art.metrics import MetricsBuilder
from art.rewards.llm.params import pricing_of
from art.tracking.prices import PriceBook
from art_extensions.litellm.prices import TABLE_FILE, _installed_table

ROW = {
    "input_cost_per_token": 1e-6,
    "output_cost_per_token": 2e-6,
    "cache_read_input_token_cost": 1e-7,
    "cache_creation_input_token_cost": None,
    "litellm_provider": "new",
}
REPLY = {"usage": {"prompt_tokens": 1000, "completion_tokens": 100}}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A litellm that is installed and cannot be loaded."""
    (tmp_path / "litellm").mkdir()
    (tmp_path / "litellm" / "__init__.py").write_text("raise AssertionError('litellm was loaded')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    _installed_table.cache_clear()
    yield tmp_path / "litellm" / TABLE_FILE
    _installed_table.cache_clear()


def cost(name: str) -> float | None:
    return MetricsBuilder("train").add_response_cost("x", REPLY, provider="o", model_name=name)


def test_a_model_that_only_litellm_knows_has_the_price_of_its_table(installed: Path) -> None:
    names = ("bedrock/new", "new", "openai/gpt-4.1", "gpt-4.1")
    installed.write_text(json.dumps({"image": {"mode": "x"}, **dict.fromkeys(names, ROW)}))
    for name in ("bedrock/new", "new", "openai/new", "new-2026-05-13"):
        assert cost(name) == pytest.approx(1200 / 1e6)
    known = PriceBook().pricing_of("bedrock/new")
    assert known and known.cached_prompt_per_million == pytest.approx(0.1)
    assert known.cache_creation_per_million is None
    for name in ("gpt-4.1", "openai/gpt-4.1"):
        published = PriceBook().pricing_of(name)
        assert published and published.prompt_per_million == 2.0  # ours is first
    assert pricing_of("image", None) is None
    with pytest.raises(ConfigurationError, match="No pricing configured for model 'image'"):
        cost("image")


def test_a_registered_price_is_before_litellms(installed: Path) -> None:
    installed.write_text(json.dumps({"new": ROW}))
    builder = MetricsBuilder("train")
    builder.register_model_pricing("new", prompt_per_million=0.0, completion_per_million=1.0)
    assert builder.add_response_cost("x", REPLY, provider="o", model_name="new") == pytest.approx(1e-4)


def test_the_table_of_a_loaded_litellm_is_the_one_that_counts(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.write_text("{}")
    monkeypatch.setitem(sys.modules, "litellm", SimpleNamespace(model_cost={"new": ROW}))
    assert cost("new") == cost("openai/new") == pytest.approx(1200 / 1e6)


@pytest.mark.parametrize("stand_in", [None, ModuleType("litellm"), MagicMock()])
def test_without_a_table_the_price_is_unknown(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", stand_in)
    assert PriceBook().pricing_of("openai/nobody-knows") is None
    with pytest.raises(ConfigurationError, match="No pricing configured"):
        cost("nobody-knows")


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_table_that_cannot_be_read_gives_no_price(
    content: str | None, installed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if content is not None:
        installed.write_text(content)
    assert PriceBook().pricing_of("new") is None and PriceBook().pricing_of("newer") is None
    assert len(caplog.messages) == (content == "{")
