"""Which engines there are, and how each one is started. A new engine is one line here and its module.

Importing this loads no engine: a worker runs in its own process, with its own interpreter where wanted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from art.engine.vllm.options import VllmOptions
from art.errors import ConfigurationError
from art.wire.engine import BuiltinOptions, checked_options
from art.wire.records import Strict


@dataclass(frozen=True, kw_only=True)
class EngineKind:
    """One engine: the module of its worker and the options it takes."""

    module: str
    """Run as `python -m module`; it speaks `art.wire.engine` on stdin, stdout and its routes."""
    options: type[Strict]
    summary: str


ENGINES: Mapping[str, EngineKind] = MappingProxyType(
    {
        "builtin": EngineKind(
            module="art.engine.builtin.worker",
            options=BuiltinOptions,
            summary="transformers models in torch, on a laptop's CPU or one GPU",
        ),
        "vllm": EngineKind(
            module="art.engine.vllm.worker",
            options=VllmOptions,
            summary="vLLM in a process and an environment of its own, or servers of it that run already",
        ),
    }
)


def engine_kind(name: str) -> EngineKind:
    """Raises: ConfigurationError that lists the known engines."""
    if name not in ENGINES:
        raise ConfigurationError(f"unknown engine {name!r}; known engines: {', '.join(sorted(ENGINES))}")
    return ENGINES[name]


def worker_command(name: str) -> list[str]:
    """The command line of an engine's worker; its `WorkerStart` goes to its standard input."""
    return [sys.executable, "-m", engine_kind(name).module]


def engine_options(name: str, given: Mapping[str, Any]) -> Strict:
    """Check options against what the engine takes. Raises: ConfigurationError that lists the known
    options."""
    return checked_options(name, engine_kind(name).options, given)
