"""Models: what an agent talks to, where its metrics go, and how it is trained."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from pydantic import BaseModel, ConfigDict, PrivateAttr
from typing_extensions import TypeVar

from art.errors import ConfigurationError, NotRegisteredError
from art.tracking.averages import as_groups, summarize
from art.tracking.history import append_row, best_step
from art.tracking.names import history_row
from art.tracking.state import merge, read_json, write_json
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import TrainConfig, TrainResult, Verbosity

if TYPE_CHECKING:
    import openai

    from art.backend import Backend

ConfigT = TypeVar("ConfigT", default=Any)
StateT = TypeVar("StateT", default=dict[str, Any])


class Model(BaseModel, Generic[ConfigT, StateT]):
    """A model that is prompted, not trained: to compare with, to judge, to play against.

    It may live anywhere that speaks OpenAI's protocol: `inference_base_url`, `inference_api_key` and
    `inference_model_name` say where. Metrics and state are files under `base_path/project/models/name`.
    """

    model_config = ConfigDict(extra="forbid")

    name: str
    project: str
    entity: str | None = None
    id: str | None = None
    run_id: str | None = None
    config: ConfigT | None = None
    trainable: bool = False
    inference_api_key: str | None = None
    inference_base_url: str | None = None
    inference_model_name: str | None = None
    base_path: str = ".art"
    report_metrics: list[str] | None = None

    _backend: Backend | None = PrivateAttr(default=None)
    _client: Any = PrivateAttr(default=None)
    _born: float = PrivateAttr(default_factory=time.monotonic)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Any:
        memo = {} if memo is None else memo
        for shared in (self._backend, self._client):  # connections are shared by copies of a model
            memo[id(shared)] = shared
        return super().__deepcopy__(memo)

    def backend(self) -> Backend:
        """The backend of `register`. Raises NotRegisteredError before."""
        if self._backend is None:
            raise NotRegisteredError(
                f"model {self.name!r} is not registered: call `await model.register(backend)` first"
            )
        return self._backend

    async def register(self, backend: Backend) -> None:
        """Make the model known to a backend."""
        await backend.register(self)
        self._backend, self._client = backend, None

    def openai_client(self) -> openai.AsyncOpenAI:
        """A client for this model's endpoint; always the same one."""
        if self._client is None:
            self._client = self._make_client()
        client: openai.AsyncOpenAI = self._client
        return client

    def _make_client(self) -> openai.AsyncOpenAI:
        if self.inference_api_key is None or self.inference_base_url is None:
            raise ConfigurationError(
                f"model {self.name!r} has no endpoint: give it `inference_base_url` and `inference_api_key`"
            )
        from art.remote.openai_client import plain_client

        return plain_client(base_url=self.inference_base_url, api_key=self.inference_api_key)

    def litellm_completion_params(self, step: int | None = None) -> dict[str, Any]:
        """Keywords for `litellm.acompletion`."""
        return {
            "model": ("hosted_vllm/" if self.trainable else "") + self.get_inference_name(step),
            "base_url": self.inference_base_url,
            "api_key": self.inference_api_key,
            "temperature": 1,
        }

    def get_inference_name(self, step: int | None = None) -> str:
        """What to send as `model`: the newest step's name, or that of a given step (`name@step`)."""
        name = self.inference_model_name or self.name
        return name if step is None else f"{name}@{step}"

    async def get_step(self) -> int:
        """How many training steps the model has had; 0 for a prompted model."""
        return 0

    def read_state(self) -> dict[str, Any] | None:
        """The program's own state as it was written last, or None."""
        return read_json(self._folder() / "state.json")

    def overwrite_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state. The file is complete at any moment."""
        write_json(self._folder() / "state.json", dict(state))

    def merge_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Merge into the state, dicts key by key; returns the whole."""
        merged = merge(self.read_state() or {}, state)
        self.overwrite_state(merged)
        return merged

    async def log(
        self,
        trajectories: Iterable[TrajectoryGroup] | Iterable[Trajectory | BaseException] | None = None,
        split: str = "val",
        *,
        metrics: Mapping[str, float] | None = None,
        step: int | None = None,
    ) -> None:
        """Append one row to `history.jsonl`: averages of the trajectories under `<split>/`, and `metrics`.

        step: the step the numbers belong to; by default the newest. With neither trajectories nor metrics
        nothing is written.
        """
        if trajectories is None and not metrics:
            return
        averages, data = ({}, {}) if trajectories is None else summarize(as_groups(trajectories), split)
        row = history_row(
            {**averages, **(metrics or {})},
            data=data,
            split=split,
            step=await self.get_step() if step is None else step,
            wall_clock=time.monotonic() - self._born,
        )
        append_row(self._folder() / "history.jsonl", row)

    def safe_model_dump(self) -> dict[str, Any]:
        """The model's fields without its config and its key."""
        return self.model_dump(exclude={"config", "inference_api_key"}) | {"config": None}

    def _folder(self) -> Path:
        return Path(self.base_path) / self.project / "models" / self.name


class TrainableModel(Model[ConfigT, StateT], Generic[ConfigT, StateT]):
    """A model that learns: a base model and a LoRA of our own.

    base_model: a hub name, a local folder, or a built-in model (`art/nano`).
    _internal_config: `peft_args` (the adapter's shape) and `trainer_args` (the optimizer); with
    `init_args={"full_finetuning": True}` all weights are trained instead of a LoRA. Unknown names are
    refused.
    """

    base_model: str
    trainable: bool = True

    _internal_config: dict[str, Any] | None = PrivateAttr(default=None)

    def __init__(self, *, _internal_config: Mapping[str, Any] | None = None, **fields: Any) -> None:
        super().__init__(**fields)
        self._internal_config = copy.deepcopy(dict(_internal_config)) if _internal_config else None

    def _make_client(self) -> openai.AsyncOpenAI:
        return self.backend().openai_client(self)

    async def get_step(self) -> int:
        """The newest step: 0 is the untouched adapter, each training step adds one."""
        return await self.backend().get_step(self)

    async def train(
        self,
        trajectory_groups: Iterable[TrajectoryGroup],
        config: TrainConfig | None = None,
        _config: Mapping[str, Any] | None = None,
        verbose: bool = False,
    ) -> TrainResult:
        """Train on groups of trajectories and log them with the result's metrics at the new step.

        config: learning rate, algorithm and so on. _config: further keywords of the backend's `train`.
        Rollouts that ask for `get_inference_name()` after this returns sample from the new step.
        """
        groups = list(trajectory_groups)
        chosen = (config or TrainConfig()).keywords()
        options = {"learning_rate": TrainConfig().learning_rate, **chosen, **(_config or {})}
        result = await self.backend().train(self, groups, verbose=verbose, **options)
        await self.log(groups, split="train", metrics=result.metrics, step=result.step)
        return result

    async def delete_checkpoints(self, best_checkpoint_metric: str = "val/reward") -> list[int]:
        """Delete all checkpoints but the newest and the best one; returns the deleted steps.

        The best is the step with the highest mean of `best_checkpoint_metric` in `history.jsonl`, if any row
        has it.
        """
        keep = {await self.get_step()}
        if (best := best_step(self._folder() / "history.jsonl", best_checkpoint_metric)) is not None:
            keep.add(best)
        return await self.backend().delete_checkpoints(self, sorted(keep))


__all__ = ["Model", "TrainableModel", "Verbosity"]
