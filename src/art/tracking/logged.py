"""The part of a model that writes: its log, its state, its costs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextvars import Token
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import deprecated

from art.errors import ConfigurationError
from art.folders import get_model_dir, get_step_from_dir
from art.tracking.averages import as_groups
from art.tracking.builder import MetricsBuilder
from art.tracking.run_log import Entry
from art.tracking.state import merge_state, overwrite_state, read_state
from art.tracking.training_costs import CostCalculator, no_costs

if TYPE_CHECKING:
    from art.tracking.client_costs import ClientCosts
    from art.tracking.run_log import RunLog
    from art.trajectories import Trajectory, TrajectoryGroup


class Logged:
    """Methods that every model has; the files are under `base_path/project/models/name`."""

    if TYPE_CHECKING:
        _run_log: RunLog
        _costs: ClientCosts
        _backend: Any

        async def get_step(self) -> int: ...

    async def log(
        self,
        trajectories: Iterable[TrajectoryGroup] | Iterable[Trajectory | BaseException] | None = None,
        split: str = "val",
        *,
        metrics: Mapping[str, float] | None = None,
        step: int | None = None,
    ) -> None:
        """Write trajectories and one row of numbers: averages under `<split>/`, and `metrics`.

        step: the step the numbers belong to; by default the newest. With neither trajectories nor metrics
        nothing is written. `docs/metrics.md` lists the names. Raises TypeError for items that are no
        trajectories, and ConfigurationError (a ValueError) for names that cannot be logged; nothing is
        written then.
        """
        if trajectories is None and not metrics:
            return
        groups = None if trajectories is None else as_groups(trajectories)
        if step is None:
            registered = self._backend is not None
            step = await self.get_step() if registered else get_step_from_dir(self._get_output_dir())
        entry = Entry(groups=groups, split=split, metrics=metrics or {}, step=step)
        await asyncio.to_thread(self._run_log.write, self, entry)  # type: ignore[arg-type]  # it is a model

    def metrics_builder(self, cost_context: str | None = None) -> MetricsBuilder:
        """Where to add costs, counts and times; the next row that `log` writes takes them up.

        cost_context: "train" waits for a row of split train, "eval" for one of val or test.
        """
        return self._run_log.builder(self._folder(), cost_context)

    def activate_metrics_context(self, cost_context: str) -> Token[MetricsBuilder]:
        """Make `metrics_builder(cost_context)` the active one; undo it with `token.var.reset(token)`."""
        return self.metrics_builder(cost_context).activate()

    @property
    def cost_calculator(self) -> CostCalculator:
        """(prompt tokens, completion tokens, cost context) -> `{"costs/...": US dollars}`."""
        return self._costs.calculator

    def set_cost_calculator(self, calculator: CostCalculator | None) -> None:
        """What the completions of this model's client cost. None: nothing.

        The costs go to the active metrics builder, else to the model's own. A prompt counts once for each
        choice.
        """
        self._costs.calculator = calculator or no_costs

    def update_wandb_config(self, config: Mapping[str, Any]) -> None:
        """Add to the config of the W&B run; kept until there is one.

        Raises ConfigurationError (a ValueError) for a value that was set to another, TypeError for no dict.
        """
        self._run_log.wandb.update_config(self, config)  # type: ignore[arg-type]  # it is a model

    def _log_metrics(self, metrics: Mapping[str, float], split: str, step: int) -> None:
        """One row of numbers, for programs that call `log`'s inner part themselves. Blocking."""
        self._run_log.write(self, Entry(groups=None, split=split, metrics=metrics, step=step))  # type: ignore[arg-type]

    def _get_wandb_run(self) -> Any:
        """The W&B run of this model, started if it is not open; None where the model does not report."""
        return self._run_log.wandb.open(self)  # type: ignore[arg-type]  # it is a model

    def read_state(self) -> dict[str, Any] | None:
        """The program's own state as it was written last, or None."""
        return read_state(self._folder())

    def overwrite_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state. The file is complete at any moment; the log's own entry in it stays."""
        overwrite_state(self._folder(), state)

    def merge_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Merge into the state, dicts key by key; returns the whole."""
        return merge_state(self._folder(), state)

    @deprecated("write_state is the older name of overwrite_state")
    def write_state(self, state: Mapping[str, Any]) -> None:
        """The older name of `overwrite_state`."""
        self.overwrite_state(state)

    def _folder(self) -> Path:
        folder = Path(get_model_dir(self))  # type: ignore[arg-type]  # it is a model
        own = Path(self.project) / "models" / self.name  # type: ignore[attr-defined]
        if ".." in own.parts or own.is_absolute():
            raise ConfigurationError(
                f"project and name of a model name folders: {str(own)!r} leads elsewhere"
            )
        return folder

    def _get_output_dir(self) -> str:
        return str(self._folder())
