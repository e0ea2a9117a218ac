"""vLLM servers that somebody else runs: asked what they are before anything is sent to them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from art.engine.vllm.client import VllmClient
from art.engine.vllm.engine import VllmEngine
from art.engine.vllm.model_config import vocabulary_size
from art.engine.vllm.options import VllmOptions
from art.engine.vllm.served import Served
from art.engine.vllm.tokenizer import end_of_text
from art.engine.vllm.versions import TESTED, check_version
from art.environment import variable
from art.errors import ARTError, ConfigurationError
from art.wire.engine import WorkerStart

PROBE_ID = 0
"""Any id: its logprob at two temperatures tells which logprobs the server gives."""


async def attach(start: WorkerStart, options: VllmOptions) -> VllmEngine:
    """The engine over this replica's server. Raises: ConfigurationError, WorkerError."""
    if start.replica >= len(options.urls):
        raise ConfigurationError(
            f"replica {start.replica} has no server: urls names {len(options.urls)}; give one for "
            "each replica"
        )
    url = options.urls[start.replica]
    client = VllmClient(url, await asyncio.to_thread(_key, options))
    try:
        version = str((await client.get("/version"))["version"])
        check_version(version, f"run vLLM {TESTED} at {url}")
        model = await _base(client, url, start.base_model)
        await _check_logprobs(client, url, model["id"])
        served = Served(
            base_model=start.base_model,
            model=model["id"],
            max_context=int(model["max_model_len"]),
            vocab_size=await asyncio.to_thread(vocabulary_size, start.base_model),
            end_of_text=await asyncio.to_thread(end_of_text, start.base_model),
            device="remote",
            dtype="bfloat16" if options.dtype == "auto" else options.dtype,
            version=version,
            sleep_mode=False,
        )
        return VllmEngine(client, served, options)
    except BaseException:
        await client.close()
        raise


async def _base(client: VllmClient, url: str, base_model: str) -> dict[str, Any]:
    """The base model's card. Adapters have a parent, or are listed after it."""
    cards: list[dict[str, Any]] = (await client.get("/v1/models"))["data"]
    bases = [card for card in cards if card.get("parent") is None]
    names = {card.get("root"): card for card in bases} | {card["id"]: card for card in bases}
    if base_model not in names:
        raise ConfigurationError(
            f"the vLLM server at {url} serves {', '.join(map(repr, names))}, not {base_model!r}: register "
            "models with that base, or attach to another server"
        )
    return names[base_model]


async def _check_logprobs(client: VllmClient, url: str, model: str) -> None:
    """The logprob of one id must depend on the temperature: it is that of what is sampled from."""

    async def logprob(temperature: float) -> float:
        body = {
            "model": model,
            "prompt": [PROBE_ID],
            "max_tokens": 1,
            "temperature": temperature,
            "logprobs": 0,
            "logprob_token_ids": [PROBE_ID],
            "return_tokens_as_token_ids": True,
            "ignore_eos": True,
        }
        reply = await client.post("/v1/completions", body)
        return float(reply["choices"][0]["logprobs"]["top_logprobs"][0][f"token_id:{PROBE_ID}"])

    if await logprob(1.0) == await logprob(2.0):
        raise ConfigurationError(
            f"the vLLM server at {url} gives logprobs of the model, not of the distribution that is sampled "
            "from; start it with --logprobs-mode processed_logprobs"
        )
    try:
        await client.post("/v1/unload_lora_adapter", {"lora_name": "art-probe-no-such-adapter"})
    except ARTError as error:
        if "art-probe" not in str(error):
            raise ConfigurationError(
                f"the vLLM server at {url} takes no adapters while it runs ({error}); start it "
                "with --enable-lora and the variable VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
            ) from error


def _key(options: VllmOptions) -> str | None:
    if options.key_file is not None:
        try:
            return Path(options.key_file).expanduser().read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"key_file {str(options.key_file)!r}: {error}") from error
    if options.key_variable is not None:
        key = variable(options.key_variable)
        if key is None:
            raise ConfigurationError(f"key_variable: the environment has no {options.key_variable!r}")
        return key
    return None
