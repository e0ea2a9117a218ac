"""A vLLM server started or found, looked at, and made an engine of."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

from art.engine.vllm.attach import attach
from art.engine.vllm.client import VllmClient
from art.engine.vllm.engine import VllmEngine
from art.engine.vllm.launch import Launch, prepare
from art.engine.vllm.model_config import vocabulary_size
from art.engine.vllm.options import VllmOptions
from art.engine.vllm.runtime import Runtime, find_runtime
from art.engine.vllm.served import Served
from art.engine.vllm.server_process import VllmProcess
from art.engine.vllm.tokenizer import end_of_text
from art.errors import ARTError, DeadlineError, WorkerDiedError
from art.wire.engine import WorkerStart

PAUSE_SECONDS = 0.2


async def start_vllm(start: WorkerStart, options: VllmOptions) -> tuple[VllmEngine, VllmProcess | None]:
    """The engine, and the process where there is one of ours.

    Raises: ConfigurationError, WorkerDiedError (with vLLM's last lines), DeadlineError.
    """
    if options.urls:
        return await attach(start, options), None
    runtime = await find_runtime(options.environment)
    folder = Path(tempfile.mkdtemp(prefix="art-vllm-"))
    try:
        launch = await prepare(start.base_model, runtime, options, folder, start.device)
        process = await VllmProcess.start(launch.command, launch.environment, str(folder))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    client = VllmClient("http://vllm", launch.key, socket=launch.socket)
    try:
        model = await _ready(client, process, options.start_deadline)
        return await _engine(start, options, runtime, launch, client, model), process
    except BaseException:
        await client.close()
        await process.stop()
        raise


async def _engine(
    start: WorkerStart,
    options: VllmOptions,
    runtime: Runtime,
    launch: Launch,
    client: VllmClient,
    model: dict[str, Any],
) -> VllmEngine:
    served = Served(
        base_model=start.base_model,
        model=model["id"],
        max_context=int(model["max_model_len"]),
        vocab_size=await asyncio.to_thread(vocabulary_size, start.base_model),
        end_of_text=await asyncio.to_thread(end_of_text, start.base_model),
        device=launch.device,
        dtype=launch.dtype,
        version=runtime.version,
        sleep_mode=launch.sleep_mode,
    )
    return VllmEngine(client, served, options)


async def _ready(client: VllmClient, process: VllmProcess, seconds: float) -> dict[str, Any]:
    """Its card of the base model, once it answers."""
    ended = asyncio.create_task(process.wait())
    try:
        async with asyncio.timeout(seconds):
            while True:
                await asyncio.wait({ended}, timeout=PAUSE_SECONDS)
                if ended.done():
                    raise WorkerDiedError(ended.result())
                try:
                    models = await client.get("/v1/models")
                except ARTError:
                    continue  # it does not listen yet
                card: dict[str, Any] = models["data"][0]
                return card
    except TimeoutError as error:
        raise DeadlineError(
            f"vLLM was not ready within {seconds:g} s (engine option start_deadline); its last lines:\n"
            f"{process.tail()}"
        ) from error
    finally:
        ended.cancel()
