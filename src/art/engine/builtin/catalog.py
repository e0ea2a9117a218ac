"""Adapters by name: a name stands for the same weights for ever, and goes when its last request has ended."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from art.engine.builtin.lora import BASE, AdapterLayers
from art.engine.builtin.peft_folder import PeftAdapter
from art.engine.builtin.whole import ModelFolder, WholeModels
from art.errors import ARTError, ConfigurationError, NotFoundError


@dataclass(slots=True)
class LiveAdapter:
    """One loaded adapter. `users` counts its requests, waiting ones included."""

    number: int
    users: int = 0
    leaving: Future[None] | None = None


@dataclass(slots=True)
class AdapterCatalog:
    """Names, their numbers and their users."""

    layers: AdapterLayers
    whole: WholeModels
    live: dict[str, LiveAdapter] = field(default_factory=dict)
    history: dict[str, tuple[Path, str]] = field(default_factory=dict)
    """Every name ever loaded, with its folder and its digest."""
    next_number: int = BASE + 1

    def names(self) -> tuple[str, ...]:
        # A copy first: health is asked for while the step thread changes the dictionary.
        return tuple(sorted(name for name, adapter in list(self.live.items()) if adapter.leaving is None))

    def number(self, name: str | None) -> int:
        """Raises: NotFoundError that lists the loaded adapters."""
        if name is None:
            return BASE
        adapter = self.live.get(name)
        if adapter is None or adapter.leaving is not None:
            # How many, not which: others' names do not belong into a reply.
            raise NotFoundError(
                f"no adapter is loaded as {name!r}; {len(self.names())} others are",
                status=404,
                code="model_not_found",
            )
        return adapter.number

    def add(self, name: str, adapter: PeftAdapter | ModelFolder) -> None:
        """Loading the same folder again does nothing. Raises: ConfigurationError for other weights,
        CheckpointError."""
        identity = (adapter.path, adapter.digest)
        if self.history.get(name, identity) != identity:
            before = self.history[name][0]
            other = "other weights in it" if before == adapter.path else repr(str(adapter.path))
            raise ConfigurationError(
                f"the adapter name {name!r} stands for {str(before)!r} and cannot be used for {other}; "
                "take a new name"
            )
        if name in self.live:
            if self.live[name].leaving is not None:
                raise ConfigurationError(
                    f"the adapter {name!r} is being unloaded; load it again when that is done"
                )
            return
        if isinstance(adapter, ModelFolder):
            self.whole.add(self.next_number, adapter)
        else:
            self.layers.add(self.next_number, adapter)
        self.live[name] = LiveAdapter(self.next_number)
        self.history[name] = identity
        self.next_number += 1

    def begin(self, name: str | None) -> None:
        if name is not None:
            self.live[name].users += 1

    def end(self, name: str | None) -> None:
        if name is not None:
            self.live[name].users -= 1

    def leave(self, name: str) -> Future[None]:
        """Refuse new requests from now on; the future is done when the adapter is gone. Raises:
        NotFoundError."""
        self.number(name)
        leaving: Future[None] = Future()
        self.live[name].leaving = leaving
        return leaving

    def abandon(self, error: ARTError) -> None:
        """The engine ends: nobody waits for the leaving adapters any more."""
        for adapter in self.live.values():
            if adapter.leaving is not None:
                adapter.leaving.set_exception(error)

    def drop_unused(self) -> list[int]:
        """Remove the leaving adapters whose last request has ended; their numbers."""
        done = [
            (name, adapter) for name, adapter in self.live.items() if adapter.leaving and not adapter.users
        ]
        for name, adapter in done:
            self.layers.remove(adapter.number)
            self.whole.remove(adapter.number)
            del self.live[name]
            if adapter.leaving is not None:
                adapter.leaving.set_result(None)
        return [adapter.number for _, adapter in done]
