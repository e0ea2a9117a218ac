"""Which server and which key a `ServerlessBackend` takes, and what it leaves alone."""

from __future__ import annotations

from importlib import import_module

import pytest

import art
from art.client.backends.serverless_backend import ServerlessBackend, choose_endpoint
from art.errors import ConfigurationError, NotBuiltError
from art.process.environment import API_KEY, BASE_URL, WANDB_API_KEY


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (API_KEY, BASE_URL, WANDB_API_KEY):
        monkeypatch.delenv(name, raising=False)


def test_arguments_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WANDB_API_KEY, "wandb-key")
    monkeypatch.setenv(BASE_URL, "http://env:1")
    assert choose_endpoint(None, None) == ("http://env:1", "wandb-key")
    monkeypatch.setenv(API_KEY, "art-key")
    assert choose_endpoint(None, None) == ("http://env:1", "art-key")
    assert choose_endpoint("mine", "https://there/v1") == ("https://there/v1", "mine")


@pytest.mark.parametrize(
    ("key", "url", "said"),
    [
        ("k", None, "protocol of its own"),
        (None, "http://there", "no api_key"),
        ("k", "https://api.training.wandb.ai/v1", "hosted service"),
        ("k", "there:8000", "is no address"),
    ],
)
def test_what_is_missing_is_said_with_the_remedy(key: str | None, url: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        ServerlessBackend(api_key=key, base_url=url)
    assert isinstance(refused.value, ConfigurationError)
    if said != "is no address":
        assert "art keys create" in str(refused.value) and BASE_URL in str(refused.value)


async def test_a_prompted_model_is_left_alone() -> None:
    model = art.Model(name="judge", project="p", inference_base_url="http://elsewhere", inference_api_key="x")
    before = model.model_dump()
    # Nobody listens at this address: any request would fail.
    await ServerlessBackend(api_key="k", base_url="http://127.0.0.1:9").register(model)
    assert model.model_dump() == before


def test_the_hosted_services_client_says_that_it_is_not_built() -> None:
    client = import_module("art.serverless.client")

    with pytest.raises(NotBuiltError, match="ServerlessBackend"):
        client.Client(api_key="k")
