"""Which server a `ServerlessBackend` reaches, and with which key."""

from __future__ import annotations

from urllib.parse import urlsplit

from art.environment import API_KEY, BASE_URL, WANDB_API_KEY, variable
from art.errors import ConfigurationError

HOSTED = "api.training.wandb.ai"

_HOW = (
    "Start an ART server (`art serve`, on another machine behind HTTPS), have its operator make a key "
    "(`art keys create NAME`), and give both: ART_BASE_URL=https://gpu.example.org and ART_API_KEY, or "
    "ServerlessBackend(base_url=..., api_key=...)."
)


def choose_endpoint(api_key: str | None, base_url: str | None) -> tuple[str, str]:
    """`(base_url, api_key)` from the arguments, else from the environment.

    Raises ConfigurationError where one is missing, and for the hosted service, whose protocol is another.
    """
    url = base_url or variable(BASE_URL)
    if url is None:
        raise ConfigurationError(
            f"ServerlessBackend has no base_url, and {BASE_URL} is not set. The hosted service of W&B "
            f"Training speaks a protocol of its own, which this library does not. {_HOW}"
        )
    parts = urlsplit(url)
    if parts.hostname == HOSTED:
        raise ConfigurationError(
            f"base_url {url!r} is the hosted service of W&B Training: it speaks a protocol of its own, which "
            f"this library does not. {_HOW}"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"base_url {url!r} is no address: it begins with http:// or https://")
    key = api_key or variable(API_KEY) or variable(WANDB_API_KEY)
    if key is None:
        raise ConfigurationError(
            f"ServerlessBackend has no api_key, and neither {API_KEY} nor {WANDB_API_KEY} is set. {_HOW}"
        )
    return url, key
