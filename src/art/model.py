"""Models: `Model` is prompted, `TrainableModel` learns."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Unpack

from pydantic import PrivateAttr

from art.errors import NotRegisteredError
from art.hidden_key import with_keys_hidden, without_keys
from art.prompted_model import ConfigT, Model, StateT
from art.tracking.client_costs import DEFAULTS
from art.tracking.history import best_step
from art.tracking.names import SECTIONS as METRIC_SECTIONS
from art.tracking.names import SPLITS as METRIC_SPLITS
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import TrainConfig, TrainResult, TrainSFTConfig, Verbosity

if TYPE_CHECKING:
    import openai

    from art.backend import Backend, JobOptions

_LOGGER = logging.getLogger(__name__)


class TrainableModel(Model[ConfigT, StateT], Generic[ConfigT, StateT]):
    """A model that learns: a base model and a LoRA of our own.

    base_model: a hub name, a local folder, or a built-in model (`art/nano`).
    _internal_config: `peft_args` (the adapter's shape) and `trainer_args` (the optimizer); with
    `init_args={"full_finetuning": True}` all weights are trained instead of a LoRA; `chat_template_kwargs`
    go along with every request. It may also be assigned before `register`. Unknown names are refused.
    """

    base_model: str
    trainable: bool = True

    _internal_config: Mapping[str, Any] | None = PrivateAttr(default=None)
    _openai_client_config: dict[str, Any] | None = PrivateAttr(default=None)

    def __init__(
        self,
        *,
        name: str,
        project: str,
        entity: str | None = None,
        id: str | None = None,
        config: ConfigT | None = None,
        base_model: str,
        base_path: str = ".art",
        report_metrics: list[str] | None = None,
        _internal_config: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            name=name,
            project=project,
            entity=entity,
            id=id,
            config=config,
            base_path=base_path,
            report_metrics=report_metrics,
            base_model=base_model,
            **kwargs,
        )
        self._internal_config = copy.deepcopy(dict(_internal_config)) if _internal_config else None

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """As in pydantic, with `_internal_config`."""
        dumped = super().model_dump(**options)
        include, exclude = options.get("include"), options.get("exclude") or ()
        if "_internal_config" in exclude or (include is not None and "_internal_config" not in include):
            return dumped
        told = without_keys if options.get("mode") == "json" else with_keys_hidden
        return dumped | {"_internal_config": told(copy.deepcopy(self._internal_config))}

    async def register(
        self, backend: Backend, _openai_client_config: Mapping[str, Any] | None = None
    ) -> None:
        """Make the model known to a backend: it can be sampled and trained afterwards.

        _openai_client_config: how its server is set up (`art.dev.OpenAIServerConfig`).
        """
        self._openai_client_config = dict(_openai_client_config) if _openai_client_config else None
        await super().register(backend)
        await asyncio.to_thread(self._run_log.wandb.open, self)

    def _make_client(self) -> openai.AsyncOpenAI:
        if self._backend is not None:
            return self._face().openai_client(self)
        if self.inference_api_key is not None and self.inference_base_url is not None:
            return super()._make_client()
        raise NotRegisteredError(
            "OpenAI client not yet available on this trainable model. You must call `model.register()` first."
        )

    def _template_arguments(self) -> Mapping[str, Any] | None:
        return (self._internal_config or {}).get(DEFAULTS)

    async def get_step(self) -> int:
        """The newest step: 0 is the untouched adapter, each training step adds one."""
        return await self._face().get_step(self)

    async def train(
        self,
        trajectory_groups: Iterable[TrajectoryGroup | None],
        config: TrainConfig | None = None,
        _config: Mapping[str, Any] | None = None,
        verbose: bool = False,
        **options: Unpack[JobOptions],
    ) -> TrainResult:
        """Train on groups of trajectories and log them with the result's metrics at the new step.

        config: learning rate, algorithm and so on. _config and options: further keywords of the backend's
        `train`; options win over _config, and that over config. Groups that are None (a judge gave them up)
        are left out. Rollouts that ask for `get_inference_name()` afterwards sample from the new step.
        """
        groups = [group for group in trajectory_groups if group is not None]
        chosen = (config or TrainConfig()).keywords()
        chosen = {"learning_rate": TrainConfig().learning_rate, **chosen, **(_config or {}), **options}
        result = await self._face().train(self, groups, verbose=verbose, **chosen)
        await self.log(groups, split="train", metrics=result.metrics, step=result.step)
        return result

    async def train_sft(
        self,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        _config: Mapping[str, Any] | None = None,
        verbose: bool = False,
    ) -> TrainResult:
        """Learn to say what assistants say in the trajectories, and log the metrics at the new step.

        One call makes one step. config: learning rate (one, or one a batch) and batch size. Without
        trajectories nothing happens and nothing is logged.
        """
        from art.remote.sft import refuse_unknown

        refuse_unknown(_config)
        started = time.monotonic()
        result = await self._face().train_sft(self, trajectories, config, verbose=verbose)
        if result.metrics:
            result.metrics["time/step_trainer_s"] = time.monotonic() - started
            await self.log(split="train", metrics=result.metrics, step=result.step)
        return result

    async def delete_checkpoints(self, best_checkpoint_metric: str = "val/reward") -> list[int]:
        """Delete all checkpoints but the newest and the best one; returns the deleted steps.

        The best is the step with the highest mean of `best_checkpoint_metric` in `history.jsonl`, the later
        one of equals. Without such a metric only the newest is kept, and a warning says so.
        """
        keep = {await self.get_step()}
        if (best := best_step(self._folder() / "history.jsonl", best_checkpoint_metric)) is not None:
            keep.add(best)
        else:
            _LOGGER.warning(
                "no row of %s has %r: only the newest checkpoint is kept",
                self._folder() / "history.jsonl",
                best_checkpoint_metric,
            )
        return await self._face().delete_checkpoints(self, sorted(keep))


def __getattr__(name: str) -> Any:
    """`AsyncOpenAI`, for tests that put a class of their own in its place."""
    if name == "AsyncOpenAI":
        from openai import AsyncOpenAI

        return AsyncOpenAI
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["METRIC_SECTIONS", "METRIC_SPLITS", "Model", "TrainableModel", "Verbosity"]
