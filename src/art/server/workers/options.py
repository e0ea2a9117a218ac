"""Which engine and which trainer a server starts for its base models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """What the workers of a base model are told.

    >>> PairOptions(engine_options={}, trainer_options={}, replicas=2, devices=["cuda:0", "cuda:1"])
    """

    engine: str = "builtin"
    engine_options: Mapping[str, Any]
    trainer_options: Mapping[str, Any]
    replicas: int = 1
    devices: Sequence[str] | None = None
    """Where each replica computes; None: where its options say."""

    def __post_init__(self) -> None:
        if self.devices is not None and len(self.devices) != self.replicas:
            raise ConfigurationError(
                f"engine.devices names {len(self.devices)} devices for {self.replicas} replicas: "
                f"{list(self.devices)!r}; name one for each, in their order"
            )

    def device(self, replica: int) -> str | None:
        """Where a replica computes, if that was chosen."""
        return None if self.devices is None else self.devices[replica]


def shared_gpu(engines: Sequence[str], trainer: str) -> bool:
    """Whether an engine computes on the trainer's GPU.

    >>> shared_gpu(["cuda:1", "cuda:0"], "cuda")
    True
    >>> shared_gpu(["cpu"], "cpu")
    False
    """
    return _spelled(trainer).startswith("cuda") and _spelled(trainer) in map(_spelled, engines)


def _spelled(device: str) -> str:
    return "cuda:0" if device == "cuda" else device
