"""Adapters by name: what a name stands for, for ever, and which requests still use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from art.errors import (
    CheckpointError,
    ConfigurationError,
    NotFoundError,
    RequestError,
    WorkerDiedError,
    WorkerError,
    WorkerStalledError,
)
from art.process.foreign_files import MOST_BYTES, parse_json, read_foreign
from art.process.in_use import InUse
from art.wire.models import ADAPTER_CONFIG_FILE, ADAPTER_FILE
from art_extensions.vllm.client import VllmClient
from art_extensions.vllm.options import VllmOptions


class VllmAdapters:
    """The LoRAs of one vLLM server."""

    def __init__(self, client: VllmClient, base: str, options: VllmOptions) -> None:
        """`base`: the name under which vLLM serves the base model."""
        self._client = client
        self._base = base
        self._options = options
        self._paths: dict[str, Path] = {}
        """Name -> folder of its weights: every one ever given, until this engine ends."""
        self._served: set[str] = set()
        self.in_use = InUse[str]()
        """Adapters in use by requests, waiting ones included."""

    @property
    def names(self) -> list[str]:
        return sorted(self._served)

    def model(self, adapter: str | None) -> str:
        """Returns vLLM's name of the adapter. Raises: NotFoundError."""
        if adapter is None:
            return self._base
        if adapter not in self._served:
            raise NotFoundError(
                f"no adapter {adapter!r} is loaded; loaded: {', '.join(self.names) or 'none'}",
                status=404,
                code="model_not_found",
            )
        return adapter

    async def load(self, name: str, path: Path) -> None:
        """See `Engine.load_adapter`."""
        known = self._paths.get(name)
        if known is not None and known != path:
            raise ConfigurationError(
                f"adapter {name!r} stands for {str(known)!r} and is never used for other weights "
                f"({str(path)!r}); choose another name"
            )
        if name in self._served:
            return
        check_folder(path, self._options)
        try:
            await self._client.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})
        except (WorkerDiedError, WorkerStalledError):
            raise
        except (NotFoundError, WorkerError) as error:
            raise CheckpointError(f"vLLM cannot load the adapter {str(path)!r}: {error}") from error
        except RequestError as error:
            await self._already_there(name, path, error)
        self._paths[name] = path
        self._served.add(name)

    async def unload(self, name: str, seconds: float) -> None:
        """See `Engine.unload_adapter`. Waits up to `seconds` for the last request. Raises: TimeoutError."""
        self.model(name)
        self._served.discard(name)
        await self.in_use.wait_until_unused(name, seconds)
        # Loaded again in the meantime: it stays.
        if name not in self._served:
            await self._client.post("/v1/unload_lora_adapter", {"lora_name": name})

    async def _already_there(self, name: str, path: Path, error: RequestError) -> None:
        """A server that ran before us may hold the name, from an engine of ours before this one."""
        models = (await self._client.get("/v1/models"))["data"]
        roots = {model["id"]: model.get("root") for model in models}
        if name not in roots:
            raise CheckpointError(f"vLLM refuses the adapter {str(path)!r}: {error}") from error
        if roots[name] != str(path):
            raise ConfigurationError(
                f"the vLLM server holds an adapter {name!r} from {roots[name]!r}, not from {str(path)!r}; "
                "unload it there, or choose another name"
            ) from error


def check_folder(path: Path, options: VllmOptions) -> None:
    """Raises: CheckpointError, ConfigurationError, for what vLLM would refuse with less to say."""
    if (path / "config.json").is_file() and not (path / ADAPTER_CONFIG_FILE).exists():
        raise ConfigurationError(
            f"{str(path)!r} is a whole model (all its weights were trained); a running vLLM takes LoRA "
            "adapters only. Serve it with the builtin engine, or train a LoRA"
        )
    try:
        config = dict(parse_json(read_foreign(path / ADAPTER_CONFIG_FILE)))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"adapter folder {str(path)!r}: {ADAPTER_CONFIG_FILE} cannot be read: {error}"
        ) from error
    if config.get("target_parameters"):
        raise ConfigurationError(
            f"adapter {str(path)!r} changes the weights of experts, which this engine does not serve. Use "
            "the builtin engine, or leave 'experts' out of target_modules"
        )
    strays = sorted({module for module in _modules(path)} - set(options.lora_targets))
    if strays:
        raise ConfigurationError(
            f"adapter {str(path)!r} changes {', '.join(strays)}, this engine takes adapters of "
            f"{', '.join(options.lora_targets)}: start it with those among its option lora_targets"
        )
    try:
        rank = _rank(config)
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        raise CheckpointError(
            f"adapter folder {str(path)!r}: {ADAPTER_CONFIG_FILE} has no rank that can be read: {error}"
        ) from error
    if rank > options.max_lora_rank:
        raise ConfigurationError(
            f"adapter {str(path)!r} has rank {rank}, this engine takes up to {options.max_lora_rank}: "
            f"start it with the engine option max_lora_rank={_smallest_max_rank(rank)}"
        )


def _modules(path: Path) -> list[str]:
    """The last components of the names of the modules that an adapter changes, from its weights' header."""
    try:
        with (path / ADAPTER_FILE).open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            names = parse_json(file.read(min(length, MOST_BYTES)))
    except (OSError, ValueError, MemoryError, OverflowError) as error:
        raise CheckpointError(
            f"adapter folder {str(path)!r}: {ADAPTER_FILE} cannot be read: {error}"
        ) from error
    return [name.partition(".lora_")[0].rpartition(".")[2] for name in names if ".lora_" in name]


def _rank(config: dict[str, Any]) -> int:
    ranks = [config.get("r", 0), *(config.get("rank_pattern") or {}).values()]
    return max(int(rank) for rank in ranks)


def _smallest_max_rank(rank: int) -> str:
    limits = [limit for limit in (8, 16, 32, 64, 128, 256, 320, 512) if limit >= rank]
    return str(limits[0]) if limits else "512, and train with at most that"
