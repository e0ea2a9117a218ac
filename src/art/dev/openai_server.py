"""How a model's OpenAI-compatible server is started: `register(backend, _openai_client_config=...)`."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any, TypedDict

from art.dev.engine import EngineArgs
from art.errors import ConfigurationError


class ServerArgs(TypedDict, total=False):
    """The arguments of vLLM's OpenAI-compatible server."""

    host: str | None
    port: int
    uvicorn_log_level: str
    allow_credentials: bool
    allowed_origins: list[str]
    allowed_methods: list[str]
    allowed_headers: list[str]
    api_key: str | None
    lora_modules: list[str] | None
    prompt_adapters: list[str] | None
    chat_template: str | None
    chat_template_content_format: str
    response_role: str
    ssl_keyfile: str | None
    ssl_certfile: str | None
    ssl_ca_certs: str | None
    enable_ssl_refresh: bool
    ssl_cert_reqs: int
    root_path: str | None
    middleware: list[str]
    return_tokens_as_token_ids: bool
    disable_frontend_multiprocessing: bool
    enable_request_id_headers: bool
    enable_auto_tool_choice: bool
    tool_call_parser: str | None
    tool_parser_plugin: str
    max_log_len: int | None
    disable_fastapi_docs: bool
    enable_prompt_tokens_details: bool
    enable_server_load_tracking: bool
    enable_reasoning: bool
    reasoning_parser: str | None


class OpenAIServerConfig(TypedDict, total=False):
    """What `register(backend, _openai_client_config=...)` takes."""

    log_file: str
    server_args: ServerArgs
    engine_args: EngineArgs


def get_openai_server_config(
    model_name: str,
    base_model: str,
    log_file: str,
    lora_path: str | None = None,
    config: OpenAIServerConfig | None = None,
) -> OpenAIServerConfig:
    """The configuration of a server for `base_model`, and the adapter at `lora_path` as `model_name@step`.

    The step is the last part of `lora_path`; what `config` says wins. Raises ConfigurationError when that
    part is not a number.
    """
    given = config or OpenAIServerConfig()
    server: dict[str, Any] = {"api_key": "default"}
    if lora_path is not None:
        named = {"name": f"{model_name}@{_step_of(lora_path)}", "path": lora_path}
        server["lora_modules"] = [json.dumps(named)]
    server |= {
        "return_tokens_as_token_ids": True,
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        **given.get("server_args", {}),
    }
    engine: dict[str, Any] = {
        "model": base_model,
        "served_model_name": base_model if lora_path is not None else model_name,
        "generation_config": "vllm",
        **given.get("engine_args", {}),
    }
    return OpenAIServerConfig(
        log_file=given.get("log_file", log_file),
        server_args=ServerArgs(**server),  # type: ignore[typeddict-item]
        engine_args=EngineArgs(**engine),  # type: ignore[typeddict-item]
    )


def _step_of(lora_path: str) -> int:
    last = PurePath(lora_path).name
    if not last.isdigit():
        raise ConfigurationError(
            f"lora_path={lora_path!r}: the last part names the step, as in 'checkpoints/0007'; it is {last!r}"
        )
    return int(last)
