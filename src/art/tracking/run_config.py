"""What the trackers are told of a run itself: its facts, and what the program says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from art.errors import ConfigurationError
from art.wire.nested import deep_merge, without_keys


class RunConfig:
    """The config of a model's runs, without keys, kept until there is a run."""

    def __init__(self) -> None:
        self._said: dict[str, Any] = {}
        self._facts: Mapping[str, Any] = {}

    @property
    def values(self) -> dict[str, Any]:
        """Returns the facts and what the program said."""
        return deep_merge(self._facts, self._said)

    def add(self, config: Mapping[str, Any]) -> None:
        """Raises ConfigurationError for a value that was set to another, TypeError for no dict."""
        if not isinstance(config, Mapping):
            raise TypeError(f"the W&B config must be a dict, got {type(config).__name__}: {config!r}")
        config = without_keys(config)
        _check_immutable(self._said, config, ())
        self._said = deep_merge(self._said, config)

    def set_facts(self, facts: Mapping[str, Any]) -> bool:
        """Replaces the facts; unlike what a program says, they may change. Returns whether they did."""
        changed, self._facts = facts != self._facts, facts
        return changed


def _check_immutable(old: Mapping[str, Any], new: Mapping[str, Any], path: tuple[str, ...]) -> None:
    for key, value in new.items():
        if key not in old:
            continue
        here, before = (*path, str(key)), old[key]
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            _check_immutable(before, value, here)
        elif before != value:
            name = ".".join(here)
            raise ConfigurationError(f"W&B config is immutable once set. Conflicting value for '{name}'.")
