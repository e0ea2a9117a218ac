from __future__ import annotations

from types import SimpleNamespace

import pytest
from openai.types.chat import ChatCompletion

from art.api_costs import MODEL_TOKEN_PRICING, track_api_cost
from art.costs import (
    MODEL_PRICING,
    ModelPricing,
    build_cost_calculator,
    compute_sample_costs,
    compute_train_cost,
    get_model_pricing,
    tokens_to_cost,
)
from art.errors import ConfigurationError
from art.metrics import MetricsBuilder
from art.tracking.prices import PriceBook

OPENAI = {
    "usage": {
        "prompt_tokens": 1000,
        "completion_tokens": 100,
        "prompt_tokens_details": {"cached_tokens": 400},
    }
}
RESPONSES = {
    "usage": {"input_tokens": 1000, "output_tokens": 100, "input_tokens_details": {"cached_tokens": 400}}
}
ANTHROPIC = {
    "usage": {
        "input_tokens": 600,
        "output_tokens": 100,
        "cache_creation_input_tokens": 200,
        "cache_read_input_tokens": 200,
    }
}


def completion(**usage) -> ChatCompletion:
    return ChatCompletion.model_validate(
        {
            "id": "c",
            "created": 0,
            "model": "m",
            "object": "chat.completion",
            "choices": [],
            "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100, **usage},
        }
    )


@pytest.mark.parametrize(
    ("response", "provider", "model", "usd"),
    [
        (OPENAI, "openai", "gpt-4.1", (600 * 2.0 + 400 * 0.5 + 100 * 8.0) / 1e6),
        (RESPONSES, "openai", "gpt-4.1", (600 * 2.0 + 400 * 0.5 + 100 * 8.0) / 1e6),
        (completion(), "openai", "gpt-4.1-mini", (1000 * 0.4 + 100 * 1.6) / 1e6),
        (
            ANTHROPIC,
            "anthropic",
            "claude-sonnet-4-6",
            (600 * 3.0 + 200 * 3.75 + 200 * 0.3 + 100 * 15.0) / 1e6,
        ),
        (completion(), "tinker", "Qwen/Qwen3-8B", (1000 * 0.13 + 100 * 0.4) / 1e6),
        (completion(cost=0.125), "openrouter", "whatever/model", 0.125),
        ({"usage": None}, "openai", "gpt-4.1", None),
    ],
)
async def test_what_a_response_costs(response, provider, model, usd):
    builder = MetricsBuilder("eval")
    told = builder.add_response_cost("judge", response, provider=provider, model_name=model)
    assert told == (usd if usd is None else pytest.approx(usd))
    assert (await builder.flush()).get("costs/eval/judge") == told


def test_the_order_of_prices():
    builder = MetricsBuilder("train")

    def cost(response=OPENAI, **prices) -> float | None:
        return builder.add_response_cost("x", response, provider="openai", model_name="gpt-4.1", **prices)

    assert cost() == pytest.approx(0.0022)
    builder.register_model_pricing("gpt-4.1", prompt_per_million=1.0, completion_per_million=1.0)
    assert cost() == pytest.approx(1100 / 1e6)  # a cache without a price is charged as prompt
    assert cost(prompt_per_million=0.0, completion_per_million=10.0) == pytest.approx(1000 / 1e6)
    builder.register_cost_extractor("openai", lambda response: 3.0 if response is OPENAI else None)
    assert cost(completion_per_million=10.0) == 3.0
    assert cost(completion()) == pytest.approx(1100 / 1e6)
    assert cost(completion(cost=7.0)) == 7.0
    other = builder.for_cost_context("eval")
    assert other.add_response_cost("x", OPENAI, provider="openai", model_name="gpt-4.1") == 3.0


def test_no_price_is_an_error_that_says_what_to_do():
    builder = MetricsBuilder("train")
    with pytest.raises(ValueError, match=r"No pricing configured for model 'new'.*register_model_pricing"):
        builder.add_response_cost("x", OPENAI, provider="openai", model_name="new")
    with pytest.raises(ConfigurationError, match="No pricing configured"):
        builder.add_response_cost("x", OPENAI, provider="o", model_name="new", prompt_per_million=1.0)


@pytest.mark.parametrize(
    ("name", "prompt", "cached", "completion"),
    [
        ("openai/gpt-4.1", 2.0, 0.5, 8.0),
        ("gpt-4.1-2025-04-14", 2.0, 0.5, 8.0),
        ("openrouter/openai/gpt-4.1-mini", 0.4, 0.1, 1.6),
        ("openai/o4-mini", 1.1, 0.275, 4.4),
        ("gpt-4o-mini", 0.15, 0.075, 0.6),
        ("openai/gpt-4o-2024-05-13", 5.0, None, 15.0),  # a dated name with a price of its own
        ("gpt-5", 1.25, 0.125, 10.0),
        ("openai/gpt-oss-20b", 0.12, None, 0.3),  # a base model of the training service
        ("anthropic/claude-haiku-4-5-20251001", 1.0, 0.1, 5.0),
        ("gemini/gemini-2.5-flash", 0.3, 0.03, 2.5),
    ],
)
def test_a_provider_in_front_and_a_date_behind_a_name_change_no_price(name, prompt, cached, completion):
    known = PriceBook().pricing_of(name)
    told = (known.prompt_per_million, known.cached_prompt_per_million, known.completion_per_million)
    assert told == (prompt, cached, completion)


@pytest.mark.parametrize("name", ["ollama/gpt-4.1", "hosted_vllm/gpt-4.1", "azure/gpt-4.1", "openai/", "x/y"])
def test_who_serves_it_otherwise_has_no_published_price(name):
    assert PriceBook().pricing_of(name) is None


def test_the_published_prices_are_a_mapping_that_asks_nobody(monkeypatch):
    def ask(*_: object, **__: object) -> None:
        raise AssertionError("a price asked the network")

    monkeypatch.setattr("socket.getaddrinfo", ask)
    monkeypatch.setattr("socket.socket.connect", ask)
    assert len(MODEL_TOKEN_PRICING) == len(list(MODEL_TOKEN_PRICING)) > 100
    assert "gpt-4.1" in MODEL_TOKEN_PRICING and "openai/gpt-4.1" not in MODEL_TOKEN_PRICING
    assert all(
        pricing.prompt_per_million is None or pricing.prompt_per_million >= 0
        for pricing in MODEL_TOKEN_PRICING.values()
    )
    long = MODEL_TOKEN_PRICING["gemini-2.5-pro"]  # dearer beyond 200,000 tokens
    assert (long.prompt_per_million, long.completion_per_million) == (1.25, 10.0)


def test_a_registered_price_is_found_with_and_without_the_provider():
    builder = MetricsBuilder("train")
    builder.register_model_pricing(model_name="openai/mine", prompt_per_million=1, completion_per_million=2)
    builder.register_model_pricing("gpt-4.1", prompt_per_million=3, completion_per_million=4)
    for name, prompt in {"mine": 1, "openai/mine": 1, "openai/gpt-4.1": 3}.items():
        assert builder.prices.pricing_of(name).prompt_per_million == prompt


def test_older_programs_name_their_prices_otherwise():
    prices = {
        "prompt_price_per_million": 1.0,
        "completion_price_per_million": 2.0,
        "cached_prompt_price_per_million": 3.0,
        "cache_creation_price_per_million": 4.0,
        "cache_read_price_per_million": 5.0,
    }
    builder = MetricsBuilder("train")

    def cost(response, provider="openai", **given) -> float | None:
        return builder.add_response_cost("x", response, provider=provider, model_name="new", **given)

    assert cost(OPENAI, **prices) == pytest.approx((600 * 1 + 400 * 3 + 100 * 2) / 1e6)
    anthropic = (600 * 1 + 200 * 4 + 200 * 5 + 100 * 2) / 1e6
    assert cost(ANTHROPIC, "anthropic", **prices) == pytest.approx(anthropic)
    with pytest.raises(ConfigurationError, match=r"=7\.0 and prompt_price_per_million=1\.0"):
        cost(OPENAI, prompt_per_million=7.0, **prices)

    @track_api_cost(source="judge", provider="anthropic", model_name="anthropic/new", **prices)
    def asks() -> dict:
        return ANTHROPIC

    with (other := MetricsBuilder("eval")).activate_context():
        asks()
    assert other.take_metrics()["costs/eval/judge"] == pytest.approx(anthropic)


def test_a_price_among_the_extra_fields_of_the_usage_counts():
    usage = SimpleNamespace(prompt_tokens=1, completion_tokens=1, cost=None, model_extra={"cost": 0.25})
    builder = MetricsBuilder("train")
    told = builder.add_response_cost(
        "judge", SimpleNamespace(usage=usage), provider="openrouter", model_name="openrouter/a/b"
    )
    assert told == 0.25


async def test_calls_are_tracked_where_a_builder_is_active():
    @track_api_cost(
        source="judge", provider="openai", model_name="gpt-4.1", response_getter=lambda pair: pair[1]
    )
    async def asks(question: str) -> tuple[str, ChatCompletion]:
        """Asks."""
        return question, completion()

    @track_api_cost(
        source="user", provider="own", model_name="m", prompt_per_million=1, completion_per_million=0
    )
    def answers() -> ChatCompletion:
        return completion()

    assert asks.__doc__ == "Asks." and (await asks("why"))[0] == "why"
    builder = MetricsBuilder("eval")
    with builder.activate_context():
        await asks("why")
        answers()
        answers()
    row = await builder.flush()
    assert row["costs/eval/judge"] == pytest.approx(0.0028) and row["costs/eval/user"] == pytest.approx(0.002)
    assert row["costs/all"] == pytest.approx(0.0048)
    with pytest.raises(ValueError, match="provider=''"):
        track_api_cost(source="x", provider="", model_name="m")


def test_prices_of_training_services():
    pricing = ModelPricing(prefill=1.0, sample=2.0, train=4.0)
    assert tokens_to_cost(2_000_000, 0.4) == 0.8
    costs = {"costs/train/tinker_prefill": 1.0, "costs/train/tinker_sample": 4.0}
    sampled = {"prompt_tokens": 1_000_000, "completion_tokens": 2_000_000}
    assert compute_sample_costs(**sampled, pricing=pricing, cost_context="train") == costs
    assert build_cost_calculator(pricing)(1_000_000, 2_000_000, "train") == costs
    assert compute_train_cost(500_000, pricing) == 2.0
    assert get_model_pricing("Qwen/Qwen3-8B") == MODEL_PRICING["Qwen/Qwen3-8B"]
    assert get_model_pricing("nobody/knows") is None
    with pytest.raises(ValueError, match="'nobody/knows'"):
        get_model_pricing(model_name="nobody/knows", strict=True)
