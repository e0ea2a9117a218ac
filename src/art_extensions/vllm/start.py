"""Starts a vLLM server or attaches to one that somebody else runs, looks at it, and makes an engine of it.

Before anything is sent, it is known what the server is: its model, its context, its vocabulary, and the id
that it ends a text with. `VllmServer` is what a supervisor watches: the engine, and the process where it is
one of ours.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from art.engine.protocol import ServerOrder
from art.errors import ARTError, ConfigurationError, DeadlineError, WorkerDiedError
from art.process.environment import variable
from art.process.files import WorkerLog
from art.process.imports import import_lock
from art.wire.samples import SEEING
from art_extensions.vllm.client import VllmClient
from art_extensions.vllm.engine import VllmEngine, VllmServerFacts
from art_extensions.vllm.launch import Launch, VllmProcess, prepare_launch
from art_extensions.vllm.options import VllmOptions
from art_extensions.vllm.runtime import TESTED, Runtime, check_version, find_runtime


def vocabulary_size(base_model: str) -> int:
    """Ids that the model has an embedding for. `base_model`: a folder, or a name on the hub.

    Raises: ConfigurationError.
    """
    path = model_file(base_model, "config.json")
    config = json.loads(path.read_text(encoding="utf-8"))
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    if not isinstance(size, int):
        raise ConfigurationError(f"the configuration of {base_model!r} gives no vocab_size")
    return size


def sees_images(base_model: str) -> bool:
    """Returns whether it is of a family whose prompts may hold images. Raises: ConfigurationError."""
    config = json.loads(model_file(base_model, "config.json").read_text(encoding="utf-8"))
    return config.get("model_type") in SEEING


def model_file(base_model: str, name: str) -> Path:
    """One small file of a model. Raises: ConfigurationError."""
    folder = Path(base_model)
    if folder.is_dir():
        if not (folder / name).is_file():
            raise ConfigurationError(f"the model folder {base_model!r} has no {name}")
        return folder / name
    with import_lock:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(base_model, name))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigurationError(f"no {name} of the base model {base_model!r}: {error}") from error


def end_of_text(base_model: str) -> int | None:
    """The tokenizer's `eos_token` as an id; None when it has none. `base_model`: a folder, or a hub name.

    Raises: ConfigurationError when the tokenizer's files cannot be had.
    """
    with import_lock:
        from tokenizers import Tokenizer

    config = json.loads(model_file(base_model, "tokenizer_config.json").read_text(encoding="utf-8"))
    token = config.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        return None
    try:
        found: int | None = Tokenizer.from_file(str(model_file(base_model, "tokenizer.json"))).token_to_id(
            text
        )
    except ValueError as error:
        raise ConfigurationError(f"the tokenizer of {base_model!r} cannot be read: {error}") from error
    return found


PROBE_ID = 0
"""Any id: its logprob at two temperatures tells which logprobs the server gives."""


async def attach(order: ServerOrder, options: VllmOptions) -> VllmEngine:
    """The engine over this replica's server. Raises: ConfigurationError, WorkerError."""
    if order.replica >= len(options.urls):
        raise ConfigurationError(
            f"replica {order.replica} has no server: urls names {len(options.urls)}; give one for "
            "each replica"
        )
    url = options.urls[order.replica]
    key = await asyncio.to_thread(_key, options)
    client = VllmClient(url, key, control_s=order.deadlines.control)
    try:
        version = str((await client.get("/version"))["version"])
        check_version(version, f"run vLLM {TESTED} at {url}")
        model = await _base(client, url, order.base_model)
        await _check_logprobs(client, url, model["id"])
        served = VllmServerFacts(
            base_model=order.base_model,
            model=model["id"],
            max_context=int(model["max_model_len"]),
            vocab_size=await asyncio.to_thread(vocabulary_size, order.base_model),
            end_of_text=await asyncio.to_thread(end_of_text, order.base_model),
            device="remote",
            dtype="bfloat16" if options.dtype == "auto" else options.dtype,
            version=version,
            sleep_mode=False,
            attached=True,
        )
        return VllmEngine(client, served, options, order.deadlines)
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


class VllmServer:
    """A vLLM server as a supervisor sees it. What is open fails when the server ends."""

    def __init__(self, name: str, engine: VllmEngine, process: VllmProcess | None) -> None:
        """`process`: None where somebody else started the server; it is never ended then."""
        self.label = f"vLLM {name!r}"
        self.node = ""
        self.engine = engine
        self._process = process
        self._watch = asyncio.create_task(self._fail_when_it_ends())

    async def wait(self) -> None:
        """Return once the server has ended; nobody is told of the end of one that is attached to."""
        await (self._process.wait() if self._process is not None else asyncio.Future[None]())

    def death(self) -> WorkerDiedError:
        """The error that says how it ended."""
        return WorkerDiedError(f"{self.label} {self._process.death() if self._process else 'is gone'}")

    async def probe(self) -> Mapping[str, Any]:
        """The engine's health: counters of vLLM's metrics, up to a second old."""
        return self.engine.health().model_dump()

    async def dump_stacks(self) -> None:
        """vLLM cannot be asked for its stacks; what it wrote is in the log."""

    async def kill(self) -> None:
        """Stops the server as `stop` does: its guard waits a moment, then kills all processes."""
        await self.stop()

    async def stop(self) -> None:
        """End it. Requests that are open fail, as those of a worker that died. Calling it twice is
        allowed."""
        self._watch.cancel()
        self.engine.fail(WorkerDiedError(f"{self.label} was ended"))
        if self._process is not None:
            await self._process.stop()
        await self.engine.close()

    async def _fail_when_it_ends(self) -> None:
        await self.wait()
        self.engine.fail(self.death())


PAUSE_SECONDS = 0.2


async def start_vllm(order: ServerOrder) -> VllmServer:
    """A server that answers, of our own or attached to.

    Raises: ConfigurationError, WorkerDiedError (with vLLM's last lines), DeadlineError.
    """
    options = order.options
    assert isinstance(options, VllmOptions)
    if options.urls:
        return VllmServer(order.name, await attach(order, options), None)
    runtime = await find_runtime(options.environment)
    folder = Path(tempfile.mkdtemp(prefix="art-vllm-"))
    try:
        images = await asyncio.to_thread(sees_images, order.base_model)
        launch = await prepare_launch(
            order.base_model, runtime, options, folder, order.device, images=images, copies=order.copies
        )
        log = WorkerLog(order.log_path)
        process = await VllmProcess.start(launch.command, launch.environment, str(folder), log)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    client = VllmClient("http://vllm", launch.key, launch.socket, control_s=order.deadlines.control)
    try:
        model = await _ready(client, process, min(options.start_deadline, order.start_deadline))
        engine = await _engine(order, options, runtime, launch, client, model)
        return VllmServer(order.name, engine, process)
    except BaseException:
        await client.close()
        await asyncio.shield(process.stop())
        raise


async def _engine(
    order: ServerOrder,
    options: VllmOptions,
    runtime: Runtime,
    launch: Launch,
    client: VllmClient,
    model: dict[str, Any],
) -> VllmEngine:
    served = VllmServerFacts(
        base_model=order.base_model,
        model=model["id"],
        max_context=int(model["max_model_len"]),
        vocab_size=await asyncio.to_thread(vocabulary_size, order.base_model),
        end_of_text=await asyncio.to_thread(end_of_text, order.base_model),
        device=launch.device,
        dtype=launch.dtype,
        version=runtime.version,
        sleep_mode=launch.sleep_mode,
        attached=False,
    )
    return VllmEngine(client, served, options, order.deadlines)


async def _ready(client: VllmClient, process: VllmProcess, seconds: float) -> dict[str, Any]:
    """Returns its card of the base model, once it answers."""
    ended = asyncio.create_task(process.wait())
    try:
        async with asyncio.timeout(seconds):
            while True:
                await asyncio.wait({ended}, timeout=PAUSE_SECONDS)
                if ended.done():
                    raise WorkerDiedError(f"vLLM {process.death()}")
                try:
                    models = await client.get("/v1/models")
                except ARTError:
                    continue  # it does not listen yet
                card: dict[str, Any] = models["data"][0]
                return card
    except TimeoutError as error:
        raise DeadlineError(
            f"vLLM was not ready within {seconds:g} s (engine option start_deadline, setting control.start); "
            f"log: {process.log.path}\n{process.log.tail()}"
        ) from error
    finally:
        ended.cancel()
