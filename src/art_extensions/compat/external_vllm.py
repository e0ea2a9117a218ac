"""`_internal_config["vllm_runtime"]`: the model's backend attaches to a vLLM server that runs already.

    {"mode": "external", "server_url": "http://gpu:8000", "api_key": "...", "health_timeout_s": 60}

The engine belongs to the server here, so the first model that a `LocalBackend` registers decides, as if the
backend had been given `server_options={"engine": {"name": "vllm", "options": {"urls": [...]}}}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from art.client.backends.local_backend import LocalBackend
from art.errors import ConfigurationError, did_you_mean
from art.process.files import create_private

KEYS = (
    "mode",
    "server_url",
    "api_key",
    "local_checkpoint_root",
    "server_checkpoint_root",
    "health_timeout_s",
)
_WHERE = "_internal_config['vllm_runtime']"


def choose_runtime(backend: LocalBackend, runtime: Mapping[str, Any]) -> None:
    """Lets the backend's server attach to the vLLM server that a model names.

    Raises: ConfigurationError for keys and values that do not fit, and where the server runs already or has
    another engine.
    """
    if not _is_external(runtime):
        return
    url = str(runtime.get("server_url") or "").rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"{_WHERE}: mode 'external' needs server_url, such as 'http://gpu-1:8000'")
    own, theirs = runtime.get("local_checkpoint_root"), runtime.get("server_checkpoint_root")
    if own != theirs:
        raise ConfigurationError(
            f"{_WHERE}: local_checkpoint_root is {own!r} and server_checkpoint_root {theirs!r}: mount the "
            f"backend's folder, {backend._path}, at the same path on the server, and leave both out"
        )
    options: dict[str, Any] = {"urls": [url]}
    if runtime.get("health_timeout_s") is not None:
        options["start_deadline"] = float(runtime["health_timeout_s"])
    if runtime.get("api_key"):
        options["key_file"] = str(_key_file(backend._path, str(runtime["api_key"])))
    engine = {"name": "vllm", "options": options}
    server = backend._server
    if server.options.get("engine", engine) != engine or (server.port and "engine" not in server.options):
        raise ConfigurationError(
            f"{_WHERE} names the server {url}, but the server of this backend has another engine: register "
            "the model first, or make another LocalBackend with a path of its own"
        )
    server.options["engine"] = engine


def _is_external(runtime: Mapping[str, Any]) -> bool:
    for name in runtime:
        if name not in KEYS:
            hint = did_you_mean(name, KEYS) or f"known: {', '.join(KEYS)}"
            raise ConfigurationError(f"{_WHERE}[{name!r}]: no such key; {hint}")
    mode = runtime.get("mode", "managed")
    if mode == "managed":
        return False
    if mode != "external":
        raise ConfigurationError(f"{_WHERE}['mode'] is {mode!r}; it is 'managed' or 'external'")
    return True


def _key_file(folder: Path, key: str) -> Path:
    """The file with the key, which only this user reads: settings of a server have no key in them."""
    path = folder / "server" / "external-vllm.key"
    path.unlink(missing_ok=True)
    create_private(path)
    path.write_text(key, encoding="ascii")
    return path
