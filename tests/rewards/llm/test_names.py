"""From a name, a function or a model to something that can be asked; what is refused, and how."""

from __future__ import annotations

import re
from typing import Any

import pytest

import art
from art.errors import ConfigurationError, LlmError, NotRegisteredError, install_command
from art.rewards.llm import Request, base_of, resolve_llm
from art.rewards.llm.endpoint import EndpointLlm
from art.rewards.llm.names import PROVIDERS
from art_extensions.testing import LlmServer

HELLO = Request(messages=({"role": "user", "content": "hello"},))


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in PROVIDERS.values():
        for name in filter(None, (provider.key_variable, provider.base_url_variable)):
            monkeypatch.delenv(name, raising=False)


def endpoint(*args: Any, **options: Any) -> EndpointLlm:
    llm = resolve_llm(*args, **options)
    assert isinstance(llm, EndpointLlm)
    return llm


def test_every_provider_has_its_address_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, provider in PROVIDERS.items():
        if provider.key_variable is not None:
            monkeypatch.setenv(provider.key_variable, f"key of {name}")
        if provider.base_url is None:
            monkeypatch.setenv(str(provider.base_url_variable), "http://127.0.0.1:8000/v1")
        llm = endpoint(f"{name}/some/model")
        assert (llm.model, llm.name) == ("some/model", f"{name}/some/model")
        assert llm.base_url.startswith("http")


def test_an_address_in_the_environment_wins_over_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://proxy.example/v1")
    assert endpoint("openai/o3").base_url == "https://proxy.example/v1"


async def test_the_key_of_a_provider_is_not_sent_to_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    async with LlmServer(lambda body: "hi", key="secret") as server:
        with pytest.raises(ConfigurationError, match="does not accept the key"):
            await resolve_llm("openai/judge", base_url=server.base_url).complete(HELLO)
        told = resolve_llm("openai/judge", params={"api_base": server.base_url, "api_key": "secret"})
        assert (await told.complete(HELLO)).text == "hi"
        assert server.requests[-1]["model"] == "judge"


async def test_with_an_address_any_name_is_sent_as_it_is() -> None:
    async with LlmServer(lambda body: body["model"], key="k") as server:
        llm = resolve_llm("Qwen/Qwen3-8B", base_url=server.base_url, api_key="k")
        assert (await llm.complete(HELLO)).text == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("opnai/o3", "did you mean 'openai'"),
        ("o3", "no provider before a slash"),
        ("openai/o3", "set OPENAI_API_KEY"),
        ("hosted_vllm/x", "HOSTED_VLLM_BASE_URL"),
        pytest.param("litellm/bedrock/x", re.escape(install_command("litellm")), marks=pytest.mark.extension),
        ("", "such as 'openai/o3'"),
        (7, "no model that can be asked"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_remedy(name: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        resolve_llm(name)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"timeout": -1}, "timeout=-1"),
        ({"num_retries": 1.5}, "num_retries=1.5"),
        ({"extra_headers": ["x"]}, "a dictionary is needed"),
        ({"api_base": "http://a/v1", "base_url": "http://b/v1"}, "given twice"),
        ({"input_cost_per_token": 1e-6}, "given together"),
    ],
)
def test_options_are_checked_by_name_and_value(params: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        resolve_llm("judge", base_url="http://127.0.0.1:1/v1", params=params)


def test_a_key_under_a_misspelt_name_is_not_shown() -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_llm("judge", base_url="http://127.0.0.1:1/v1", params={"apikey": "sk-secret"})
    assert "apikey" in str(caught.value) and "sk-secret" not in str(caught.value)


async def test_options_reach_the_endpoint() -> None:
    async with LlmServer(lambda body: "hi") as server:
        llm = resolve_llm(
            "judge",
            base_url=server.base_url,
            api_key=server.key,
            params={
                **{"temperature": 0.2, "max_tokens": 7, "seed": 3, "top_p": 0.9, "reasoning_effort": "low"},
                **{"extra_body": {"guided": 1}, "top_k": 5, "extra_headers": {"x-who": "me"}},
            },
        )
        await llm.complete(Request(messages=HELLO.messages, max_tokens=99, temperature=1.0))
    body = server.requests[0]
    wanted = {"temperature": 0.2, "max_tokens": 7, "seed": 3, "top_p": 0.9, "reasoning_effort": "low"}
    assert {name: body[name] for name in wanted} == wanted
    assert (body["guided"], body["top_k"], server.served[0].headers["x-who"]) == (1, 5, "me")


async def test_functions_are_models() -> None:
    def plain(messages: list[dict[str, Any]]) -> str:
        return str(messages[0]["content"]).upper()

    async def with_schema(messages: list[dict[str, Any]], schema: Any) -> dict[str, Any]:
        return {"asked": schema}

    assert (await resolve_llm(plain).complete(HELLO)).text == "HELLO"
    asked = Request(messages=HELLO.messages, schema={"type": "object"})
    assert (await resolve_llm(with_schema).complete(asked)).text == '{"asked": {"type": "object"}}'


async def test_a_function_that_fails_or_answers_nonsense_is_named() -> None:
    def broken(messages: Any) -> Any:
        raise KeyError("who")

    def nonsense(messages: Any) -> Any:
        return object()

    with pytest.raises(LlmError, match=r"broken raised KeyError: 'who'"):
        await resolve_llm(broken).complete(HELLO)
    with pytest.raises(LlmError, match=r"nonsense returned <object"):
        await resolve_llm(nonsense).complete(HELLO)
    with pytest.raises(ConfigurationError, match="takes 0 arguments"):
        resolve_llm(lambda: "x")


async def test_a_prompted_model_is_asked_at_its_own_address() -> None:
    async with LlmServer(lambda body: body["model"]) as server:
        model = art.Model(
            name="judge",
            project="p",
            inference_base_url=server.base_url,
            inference_api_key=server.key,
            inference_model_name="gpt-4.1",
        )
        assert (await resolve_llm(model).complete(HELLO)).text == "gpt-4.1"
    with pytest.raises(ConfigurationError, match="only a TrainableModel has a base model"):
        base_of(model)  # type: ignore[arg-type]


async def test_a_model_that_learns_is_asked_after_it_is_registered() -> None:
    model = art.TrainableModel(name="agent", project="p", base_model="art/nano")
    assert base_of(model).name == "art/nano"
    with pytest.raises(NotRegisteredError, match="cannot be asked yet"):
        await base_of(model).complete(HELLO)
