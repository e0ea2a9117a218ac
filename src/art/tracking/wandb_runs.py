"""The open runs of Weights & Biases in this process, and what is told to one."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from art.tracking.names import SECTIONS, SPLITS

X_AXIS = "training_step"
_NOT_IN_AN_ID = re.compile(r"[/\\#?%:]")


class RunKey(NamedTuple):
    """Whose run it is. `run_id` None: the name."""

    entity: str | None
    project: str
    name: str
    run_id: str | None


class OpenRuns:
    """One run for a key, however many models report to it. Safe to use from several threads."""

    def __init__(self) -> None:
        self._runs: dict[RunKey, _Run] = {}
        self._lock = threading.Lock()

    def open(self, key: RunKey, config: Mapping[str, Any], patience_s: float | None = None) -> Any:
        """W&B's run, started if it is not open. patience_s: how long that may take; None: as it does."""
        with self._lock:
            return self._get(key, config, patience_s).run

    def log(
        self,
        key: RunKey,
        config: Mapping[str, Any],
        row: Mapping[str, Any],
        patience_s: float | None = None,
    ) -> None:
        """Tell the run a row. One that the program has ended goes on."""
        with self._lock:
            run = self._get(key, config, patience_s)
            try:
                run.log(row)
            except import_module("wandb").UsageError:
                del self._runs[key]
                self._get(key, config, patience_s).log(row)

    def configure(self, key: RunKey, config: Mapping[str, Any]) -> None:
        """Tell an open run more of its config; one that is not open gets it at its start."""
        with self._lock:
            if key in self._runs:
                self._runs[key].run.config.update(dict(config), allow_val_change=True)

    def _get(self, key: RunKey, config: Mapping[str, Any], patience_s: float | None) -> _Run:
        if key not in self._runs:
            wandb = import_module("wandb")
            settings = {} if patience_s is None else {"init_timeout": patience_s}
            started = wandb.init(
                entity=key.entity,
                project=key.project,
                name=key.name,
                id=self._free_id(key),
                config=dict(config),
                resume="allow",
                reinit="create_new",
                settings=wandb.Settings(**settings),
            )
            self._runs[key] = _Run(started)
        return self._runs[key]

    def _free_id(self, key: RunKey) -> str:
        """The run's id, which lets a later process resume it.

        W&B tells runs with one id apart by entity and project, but opens only one of them at a time in a
        process: the second gets an id that also says where it belongs.
        """
        told = key.run_id or key.name
        safe = _NOT_IN_AN_ID.sub("-", told)
        if safe != told:  # two names must not become one run
            safe = f"{safe}-{_digest(told)}"
        if any(run.run.id == safe for run in self._runs.values()):
            return f"{safe}-{_digest(f'{key.entity}/{key.project}/{key.name}')}"
        return safe


@lru_cache(maxsize=1)
def open_runs() -> OpenRuns:
    """Those of this process: W&B's own service is one for a process, too."""
    return OpenRuns()


class _Run:
    """A run and the axes it knows."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self._defined: set[str] = set()
        for axis in (X_AXIS, "time/wall_clock_sec"):
            run.define_metric(axis)
        for section in sorted(SECTIONS | SPLITS | {"discarded"}):
            self._define(f"{section}/*")

    def _define(self, name: str) -> None:
        if name not in self._defined:
            self._defined.add(name)
            self.run.define_metric(name, step_metric=X_AXIS)

    def log(self, row: Mapping[str, Any]) -> None:
        """W&B's own step only counts calls: rows may come in any order of training steps."""
        for name in row:
            section, _, rest = name.partition("/")
            if section == "costs" and "/" in rest:
                self._define(name)
            elif rest:
                self._define(f"{section}/*")
        self.run.log({name: value for name, value in row.items() if name not in ("step", "recorded_at")})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
