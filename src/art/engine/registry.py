"""Which engines there are, and how each one is started. A new engine is one line here and its module.

Importing this loads no engine: torch stays in worker processes, and what speaks to a server of somebody
else's engine is imported when one is started.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from art.engine.protocol import ServerOrder
from art.engine.vllm.options import VllmOptions
from art.engine.vllm.runtime import TESTED
from art.errors import ConfigurationError, extra_needed
from art.wire.engine import BuiltinOptions, checked_options
from art.wire.records import Strict

if TYPE_CHECKING:
    from art.engine.vllm.start import VllmServer


@dataclass(frozen=True, kw_only=True)
class EngineKind:
    """One engine: the options it takes, the module of its worker, and perhaps what starts its server."""

    options: type[Strict]
    summary: str
    module: str = ""
    """Run as `python -m module`; it speaks `art.wire.engine` on stdin, stdout and its routes."""
    no_bits: str = ""
    """Why it has no quantized base models; empty: it has."""
    start_server: Callable[[ServerOrder], Awaitable[VllmServer]] | None = None
    """Starts a server on this machine with an HTTP of its own, which an engine in this process speaks to."""


async def _start_vllm(order: ServerOrder) -> VllmServer:
    """Raises: what `start_vllm` raises."""
    with extra_needed("vllm", "the vLLM engine"):
        from art.engine.vllm.start import start_vllm
    return await start_vllm(order)


ENGINES: Mapping[str, EngineKind] = MappingProxyType(
    {
        "builtin": EngineKind(
            module="art.engine.builtin.worker",
            options=BuiltinOptions,
            summary="transformers models in torch, on a laptop's CPU or one GPU",
        ),
        "vllm": EngineKind(
            module="art.engine.vllm.worker",
            start_server=_start_vllm,
            no_bits=f"vLLM {TESTED} has no bitsandbytes quantization",
            options=VllmOptions,
            summary="vLLM in a process and an environment of its own, or servers of it that run already",
        ),
    }
)


def gpus_together(options: Strict) -> int:
    """Returns the number of GPUs that hold one copy of the model together."""
    if not isinstance(options, VllmOptions):
        return 1
    given = {name.replace("-", "_"): value for name, value in options.engine_args.items()}
    parts = [given.get(name, 1) for name in ("tensor_parallel_size", "pipeline_parallel_size")]
    return int(parts[0]) * int(parts[1])


def engine_kind(name: str) -> EngineKind:
    """Raises: ConfigurationError that lists the known engines."""
    if name not in ENGINES:
        raise ConfigurationError(f"unknown engine {name!r}; known engines: {', '.join(sorted(ENGINES))}")
    return ENGINES[name]


def masked_by(name: str, options: Mapping[str, Any]) -> str:
    """Says what decides which ids a constraint allows: `art.wire.training.MaskedBy` has those that the
    trainer follows. Raises: ConfigurationError for options that the engine does not take.
    """
    taken = engine_options(name, options)
    if isinstance(taken, VllmOptions) and not taken.own_masks:
        return "vllm-guidance"
    return name


def check_bits(name: str, bits: int) -> None:
    """Raises: ConfigurationError for bits that no base model has, or that this engine cannot load."""
    kind = engine_kind(name)
    if bits not in (4, 8, 16):
        raise ConfigurationError(f"a base model has 4, 8 or 16 bits; bits is {bits!r}")
    if bits != 16 and kind.no_bits:
        raise ConfigurationError(
            f"the engine {name!r} cannot sample from a base model in {bits} bits: {kind.no_bits}. Use the "
            "engine 'builtin', or leave load_in_4bit and load_in_8bit out"
        )


def worker_command(name: str) -> list[str]:
    """The command line of an engine's worker; its `WorkerStart` goes to its standard input.

    Raises: ConfigurationError for an engine that no worker of ours serves.
    """
    module = engine_kind(name).module
    if not module:
        raise ConfigurationError(f"the engine {name!r} runs in a server of its own, not in a worker")
    return [sys.executable, "-m", module]


def engine_options(name: str, options: Mapping[str, Any]) -> Strict:
    """Check options against what the engine takes. Raises: ConfigurationError that lists the known
    options."""
    return checked_options(name, engine_kind(name).options, options)
