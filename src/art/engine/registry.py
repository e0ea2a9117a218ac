"""Which engines there are, and how each one is started: the builtin one, and those of extensions.

Importing this loads no engine: torch stays in worker processes, and what speaks to a server of somebody
else's engine is imported when one is started.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from art.engine.protocol import EngineServer, ServerOrder
from art.errors import ConfigurationError
from art.extensions import ENGINE, extension_points, load_extension
from art.wire.engine import BuiltinOptions, checked_options
from art.wire.records import Strict


@dataclass(frozen=True, kw_only=True)
class EngineKind:
    """One engine: the options it takes, the module of its worker, and perhaps what starts its server."""

    options: type[Strict]
    module: str = ""
    """Run as `python -m module`; it speaks `art.wire.engine` on stdin, stdout and its routes."""
    no_bits: str = ""
    """Why it has no quantized base models; empty: it has."""
    start_server: Callable[[ServerOrder], Awaitable[EngineServer]] | None = None
    """Starts a server on this machine with an HTTP of its own, which an engine in this process speaks to."""
    gpus_together: Callable[[Any], int] | None = None
    """Returns for its options the number of GPUs that hold one copy of the model together; None: one."""
    masked_by: Callable[[Any], str] | None = None
    """Returns for its options what decides which ids a constraint allows; None: the engine itself."""


BUILTIN = "builtin"
_BUILTIN = EngineKind(module="art.engine.builtin.worker", options=BuiltinOptions)


def engine_kind(name: str) -> EngineKind:
    """Returns the kind of an engine. Raises: ConfigurationError that lists the known ones, or says why an
    extension's cannot be loaded.
    """
    if name == BUILTIN:
        return _BUILTIN
    known = sorted({BUILTIN, *extension_points(ENGINE)})
    if name not in known:
        raise ConfigurationError(f"unknown engine {name!r}; known engines: {', '.join(known)}")
    found: EngineKind = load_extension(ENGINE, name)
    return found


def masked_by(name: str, options: Mapping[str, Any]) -> str:
    """Says what decides which ids a constraint allows: `art.wire.training.MaskedBy` has those that the
    trainer follows. Raises: ConfigurationError for options that the engine does not take.
    """
    taken, masked = engine_options(name, options), engine_kind(name).masked_by
    return name if masked is None else masked(taken)


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
