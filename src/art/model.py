"""Models: what an agent talks to, where its metrics go, and how it is trained."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic

from pydantic import BaseModel, ConfigDict, PrivateAttr
from typing_extensions import TypeVar

from art.errors import ConfigurationError, NotRegisteredError
from art.tracking.client_costs import DEFAULTS, ClientCosts
from art.tracking.history import best_step
from art.tracking.logged import Logged
from art.tracking.model_file import SECRETS, check_config
from art.tracking.run_log import RunLog
from art.tracking.wandb import check_sinks
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import TrainConfig, TrainResult, TrainSFTConfig, Verbosity

if TYPE_CHECKING:
    import openai

    from art.backend import Backend

ConfigT = TypeVar("ConfigT", default=Any)
StateT = TypeVar("StateT", default=dict[str, Any])

_LOGGER = logging.getLogger(__name__)


class Model(Logged, BaseModel, Generic[ConfigT, StateT]):
    """A model that is prompted, not trained: to compare with, to judge, to play against.

    It may live anywhere that speaks OpenAI's protocol: `inference_base_url`, `inference_api_key` and
    `inference_model_name` say where. config: a pydantic model of your own. report_metrics: ["wandb"], [] for
    nothing; None reports to W&B if WANDB_API_KEY is set. Metrics and state are files under
    `base_path/project/models/name`. Unknown fields are ignored with a warning.
    """

    model_config = ConfigDict(extra="ignore")

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
    _run_log: RunLog = PrivateAttr(default_factory=RunLog)
    _costs: ClientCosts = PrivateAttr(default_factory=ClientCosts)

    def __init__(
        self,
        *,
        name: str,
        project: str,
        entity: str | None = None,
        id: str | None = None,
        config: ConfigT | None = None,
        inference_api_key: str | None = None,
        inference_base_url: str | None = None,
        inference_model_name: str | None = None,
        base_path: str = ".art",
        report_metrics: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        named = {key: value for key, value in locals().items() if key in Model.model_fields}
        # What is left at its default may have another default in a subclass.
        given = {key: value for key, value in named.items() if value is not Model.model_fields[key].default}
        known = type(self).model_fields
        if unknown := sorted(kwargs.keys() - known):
            text = f"{type(self).__name__} ignores {', '.join(unknown)}; it knows {', '.join(known)}"
            warnings.warn(text, stacklevel=2 if type(self) is Model else 3)
        check_sinks(report_metrics)
        super().__init__(**given, **{key: value for key, value in kwargs.items() if key in known})

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Any:
        memo = {} if memo is None else memo
        for shared in (self._backend, self._client):  # connections are shared by copies of a model
            memo[id(shared)] = shared
        return self._apart(super().__deepcopy__(memo))

    def __copy__(self) -> Any:
        return self._apart(super().__copy__())

    def _apart(self, copied: Any) -> Any:
        """A copy may get another name: what it logs and what it costs is its own."""
        copied._run_log, copied._costs = copy.deepcopy(self._run_log), copy.copy(self._costs)
        copied._client = None if self._client is None else self._costs.detached(self._client)
        return copied

    def backend(self) -> Backend:
        """The backend of `register`. Raises NotRegisteredError (a ValueError) before."""
        if self._backend is None:
            raise NotRegisteredError(
                "Model is not registered with the Backend. You must call `model.register()` first."
            )
        return self._backend

    async def register(self, backend: Backend) -> None:
        """Make the model known to a backend. Raises ConfigurationError for a config that is not JSON."""
        check_config(self.config)
        await backend.register(self)
        self._backend, self._client = backend, None
        self._run_log.ready()

    def openai_client(self) -> openai.AsyncOpenAI:
        """A client for this model's endpoint; always the same one."""
        if self._client is None:
            self._client = self._make_client()
        self._costs.equip(self._client, self.metrics_builder, self._template_arguments())
        client: openai.AsyncOpenAI = self._client
        return client

    def _make_client(self) -> openai.AsyncOpenAI:
        if self.inference_api_key is None or self.inference_base_url is None:
            raise ConfigurationError(
                "In order to create an OpenAI client you must provide an `inference_api_key` and "
                "`inference_base_url`."
            )
        from art.remote.openai_client import plain_client

        return plain_client(base_url=self.inference_base_url, api_key=self.inference_api_key)

    def _template_arguments(self) -> Mapping[str, Any] | None:
        """Of the chat template, sent with every request."""
        return None

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
        namer = getattr(self._backend, "_model_inference_name", None)
        if namer is not None:
            told: str = namer(self, step)
            return told
        name = self.inference_model_name or self.name
        return name if step is None else f"{name}@{step}"

    async def get_step(self) -> int:
        """How many training steps the model has had; 0 for a prompted model."""
        return 0

    def safe_model_dump(self) -> dict[str, Any]:
        """The model's fields without its config and its key."""
        return self.model_dump(exclude={"config", *SECRETS}) | {"config": None}


class TrainableModel(Model[ConfigT, StateT], Generic[ConfigT, StateT]):
    """A model that learns: a base model and a LoRA of our own.

    base_model: a hub name, a local folder, or a built-in model (`art/nano`).
    _internal_config: `peft_args` (the adapter's shape) and `trainer_args` (the optimizer); with
    `init_args={"full_finetuning": True}` all weights are trained instead of a LoRA; `chat_template_kwargs`
    go along with every request. It may also be assigned before `register`. Unknown names are refused.
    """

    base_model: str
    trainable: bool = True

    _internal_config: dict[str, Any] | None = PrivateAttr(default=None)
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
        return dumped | {"_internal_config": copy.deepcopy(self._internal_config)}

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
            return self._backend.openai_client(self)
        if self.inference_api_key is not None and self.inference_base_url is not None:
            return super()._make_client()
        raise NotRegisteredError(
            "OpenAI client not yet available on this trainable model. You must call `model.register()` first."
        )

    def _template_arguments(self) -> Mapping[str, Any] | None:
        return (self._internal_config or {}).get(DEFAULTS)

    async def get_step(self) -> int:
        """The newest step: 0 is the untouched adapter, each training step adds one."""
        return await self.backend().get_step(self)

    async def train(
        self,
        trajectory_groups: Iterable[TrajectoryGroup | None],
        config: TrainConfig | None = None,
        _config: Mapping[str, Any] | None = None,
        verbose: bool = False,
        **options: Any,
    ) -> TrainResult:
        """Train on groups of trajectories and log them with the result's metrics at the new step.

        config: learning rate, algorithm and so on. _config and options: further keywords of the backend's
        `train`; options win over _config, and that over config. Groups that are None (a judge gave them up)
        are left out. Rollouts that ask for `get_inference_name()` afterwards sample from the new step.
        """
        groups = [group for group in trajectory_groups if group is not None]
        chosen = (config or TrainConfig()).keywords()
        chosen = {"learning_rate": TrainConfig().learning_rate, **chosen, **(_config or {}), **options}
        result = await self.backend().train(self, groups, verbose=verbose, **chosen)
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
        result = await self.backend().train_sft(self, trajectories, config, verbose=verbose)
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
        return await self.backend().delete_checkpoints(self, sorted(keep))


__all__ = ["Model", "TrainableModel", "Verbosity"]
