"""Models: `Model` is prompted, `TrainableModel` learns.

What an agent talks to, how it is registered and trained, and where its metrics, state and costs go.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextvars import Token
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Unpack, cast
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, PrivateAttr, SerializationInfo, field_serializer
from typing_extensions import TypeVar, deprecated

from art.backend import as_backend
from art.client.pinned_steps import name_of_step
from art.errors import ConfigurationError, NotRegisteredError, did_you_mean
from art.process.imports import import_lock
from art.tracking.averages import as_groups
from art.tracking.call_costs import CHAT_TEMPLATE_KWARGS, ClientCosts, ForeignClient
from art.tracking.folders import ModelPaths, get_model_dir, get_step_from_dir, stored_name
from art.tracking.metrics_builder import MetricsBuilder
from art.tracking.model_files import (
    MetricHistory,
    check_config,
    closest_metrics,
    merge_state,
    overwrite_state,
    read_state,
)
from art.tracking.names import SECTIONS as METRIC_SECTIONS
from art.tracking.names import SPLITS as METRIC_SPLITS
from art.tracking.prices import CostCalculator, no_costs
from art.tracking.run_log import LogEntry, RunLog
from art.tracking.sinks.registry import check_sinks
from art.tracking.step_log import TrainLog
from art.trajectories import Trajectory, TrajectoryGroup, gathered_groups
from art.types import (
    LoRAConfig,
    TrainConfig,
    TrainResult,
    TrainSFTConfig,
    Verbosity,
    check_call_config,
    peft_arguments,
)
from art.wire.nested import MASK, HiddenKey, with_keys_hidden, without_keys

if TYPE_CHECKING:
    import openai

    from art.backend import Backend, JobOptions, SftExample
    from art.trajectories import Trajectory, TrajectoryGroup

__all__ = ["METRIC_SECTIONS", "METRIC_SPLITS", "Model", "TrainableModel", "Verbosity"]

ConfigT = TypeVar("ConfigT", default=Any)
StateT = TypeVar("StateT", default=dict[str, Any])


def _check_folder(what: str, name: object) -> None:
    """Raises ConfigurationError for a name that cannot be a folder's."""
    if isinstance(name, str) and (not name or name.startswith(".") or re.search(r"[/\\\0]", name)):
        raise ConfigurationError(
            f"{what}={name!r} is no name of a folder, which a model has: it is not empty, does not begin "
            "with '.' and has no '/' or '\\'. The name that an endpoint knows goes into inference_model_name."
        )


class Model(BaseModel, Generic[ConfigT, StateT]):
    """A model that is prompted, not trained: a baseline, a judge, an opponent.

    It may live anywhere that speaks OpenAI's protocol: `inference_base_url`, `inference_api_key` and
    `inference_model_name` say where. The key is shown nowhere, and `model_dump_json` leaves it out. config: a
    pydantic model of your own. report_metrics: any of "wandb", "tensorboard", "trackio", "mlflow", "otel";
    [] for nothing; None reports to W&B if WANDB_API_KEY is set. Metrics and state are files under
    `base_path/project/models/name`. run_name: a run of its own, with its files, checkpoints and trackers by
    this name instead of `name`.

    Raises ConfigurationError for an unknown field, and for a name that is no name of a folder.
    """

    model_config = ConfigDict(extra="ignore")

    name: str
    project: str
    entity: str | None = None
    id: str | None = None
    run_id: str | None = None
    run_name: str | None = None
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
    _read_metrics: dict[tuple[Path, str], MetricHistory] = PrivateAttr(default_factory=dict)

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
        named = {
            **{"name": name, "project": project, "entity": entity, "id": id, "config": config},
            **{"inference_api_key": inference_api_key, "inference_base_url": inference_base_url},
            **{"inference_model_name": inference_model_name, "base_path": base_path},
            "report_metrics": report_metrics,
        }
        # What is left at its default may have another default in a subclass.
        given = {key: value for key, value in named.items() if value is not Model.model_fields[key].default}
        known = type(self).model_fields
        for unknown in sorted(kwargs.keys() - known):
            hint = did_you_mean(unknown, known)
            raise ConfigurationError(
                f"{type(self).__name__}({unknown}=...): no such field{hint and f', {hint}'}; it has "
                f"{', '.join(known)}"
            )
        _check_folder("name", name)
        _check_folder("run_name", kwargs.get("run_name"))
        given_key: Any = inference_api_key
        if not (given_key is None or isinstance(given_key, str)):
            # Pydantic would show it.
            raise ConfigurationError(f"inference_api_key is a {type(given_key).__name__}: a string is needed")
        check_sinks(report_metrics)
        super().__init__(**given, **kwargs)

    @field_serializer("inference_api_key", when_used="unless-none")
    def _hidden(self, key: str, info: SerializationInfo) -> str | None:
        """JSON is for files and logs; a dict is for programs, and hides the key where it is printed."""
        return None if info.mode == "json" else HiddenKey(key)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, HiddenKey(MASK) if name == "inference_api_key" and value is not None else value

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Any:
        memo = {} if memo is None else memo
        for shared in (self._backend, self._client):  # connections are shared by copies of a model
            memo[id(shared)] = shared
        return self._separate_costs(super().__deepcopy__(memo))

    def __copy__(self) -> Any:
        return self._separate_costs(super().__copy__())

    def __getstate__(self) -> dict[Any, Any]:
        """Returns the state for another process: the endpoint's address without open connections."""
        state = super().__getstate__()
        here = {"_backend": None, "_client": None, "_costs": copy.copy(self._costs)}
        return {**state, "__pydantic_private__": {**(state["__pydantic_private__"] or {}), **here}}

    def __eq__(self, other: object) -> bool:
        """Compares class and fields, but not the registration or the log."""
        return type(other) is type(self) and self.model_dump() == other.model_dump()

    __hash__ = None  # type: ignore[assignment]  # as in pydantic: fields may change

    def _separate_costs(self, copied: Any) -> Any:
        """A copy may get another name: what it logs and what it costs is its own."""
        copied._run_log, copied._costs = copy.deepcopy(self._run_log), copy.copy(self._costs)
        copied._client = None if self._client is None else self._costs.detached(self._client)
        return copied

    def backend(self) -> Backend:
        """The backend of `register`. Raises NotRegisteredError (a ValueError) before `register`."""
        if self._backend is None:
            raise NotRegisteredError(
                "Model is not registered with the Backend. "
                "You must call `await model.register(backend)` first."
            )
        return self._backend

    def _face(self) -> Backend:
        """The backend by our names, also where a program brought its own."""
        return as_backend(self.backend())

    async def register(self, backend: Backend) -> None:
        """Registers the model with a backend. Raises ConfigurationError for a config that is not JSON."""
        check_config(self.config)
        await as_backend(backend).register(self)
        self._backend, self._client = backend, None
        self._run_log.ready()

    def openai_client(self) -> openai.AsyncOpenAI:
        """Returns the client for this model's endpoint; always the same one."""
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
        with import_lock:
            from openai import AsyncOpenAI

        from art.client.http.openai_client import plain_client

        url, key = self.inference_base_url, self.inference_api_key
        # Programs' tests put a class of their own there.
        module = sys.modules.get("art.model")
        maker = vars(module).get("AsyncOpenAI", AsyncOpenAI) if module else AsyncOpenAI
        if maker is AsyncOpenAI:
            return plain_client(base_url=url, api_key=key)
        return cast("AsyncOpenAI", ForeignClient(maker(base_url=url, api_key=key)))

    def _template_arguments(self) -> Mapping[str, Any] | None:
        """The arguments of the chat template, sent with every request."""
        return None

    def litellm_completion_params(self, step: int | None = None) -> dict[str, Any]:
        """Returns keywords for `litellm.acompletion`."""
        return {
            "model": ("hosted_vllm/" if self.trainable else "") + self.get_inference_name(step),
            "base_url": self.inference_base_url,
            "api_key": None if self.inference_api_key is None else HiddenKey(self.inference_api_key),
            "temperature": 1,
        }

    def get_inference_name(self, step: int | None = None) -> str:
        """Returns the name to send as `model`: the newest step's name, that of the step that is pinned here,
        or that of a given step (`name@step`).
        """
        namer = getattr(self._backend, "_model_inference_name", None)
        if namer is not None:
            inference_name: str = namer(self, step)
            return inference_name
        return name_of_step(self, self.inference_model_name or self.name, step)

    async def get_step(self) -> int:
        """Returns the number of training steps of the model; 0 for a prompted model."""
        return 0

    def safe_model_dump(self) -> dict[str, Any]:
        """Returns the model's fields without its config and its key."""
        return self.model_dump(exclude={"config", "inference_api_key"}) | {"config": None}

    # -- what it writes: its log, its state, its costs; files under `base_path/project/models/name` --

    async def log(
        self,
        trajectories: Iterable[TrajectoryGroup] | Iterable[Trajectory | BaseException] | None = None,
        split: str = "val",
        *,
        metrics: Mapping[str, float] | None = None,
        step: int | None = None,
    ) -> None:
        """Writes trajectories and one row of numbers: averages under `<split>/`, and `metrics`.

        step: the step the numbers belong to; by default the newest. With neither trajectories nor metrics
        nothing is written; `metrics={}` writes what waits in the metrics builder. `docs/reference/metrics.md`
        lists the names. Raises TypeError for items that are no trajectories, and ConfigurationError (a
        ValueError) for names that cannot be logged; nothing is written then.
        """
        if trajectories is None and metrics is None:
            return
        groups = None if trajectories is None else as_groups(trajectories)
        if step is None:
            registered = self._backend is not None
            step = await self.get_step() if registered else get_step_from_dir(self._get_output_dir())
        entry = LogEntry(groups=groups, split=split, metrics=metrics or {}, step=step)
        await asyncio.to_thread(self._run_log.write, self, entry)

    def metrics_builder(self, cost_context: str | None = None) -> MetricsBuilder:
        """Returns the builder for costs, counts and times; the next row that `log` writes includes them.

        cost_context: "train" waits for a row of split train, "eval" for one of val or test.
        """
        return self._run_log.builder(self._folder(), cost_context)

    def activate_metrics_context(self, cost_context: str) -> Token[MetricsBuilder]:
        """Activates `metrics_builder(cost_context)`; undo it with `token.var.reset(token)`."""
        return self.metrics_builder(cost_context).activate()

    @property
    def cost_calculator(self) -> CostCalculator:
        """The function (prompt tokens, completion tokens, cost context) -> `{"costs/...": US dollars}`."""
        return self._costs.calculator

    def set_cost_calculator(self, calculator: CostCalculator | None) -> None:
        """Sets the cost function for completions of this model's client. None: no costs.

        The costs go to the active metrics builder, else to the model's own. A prompt counts once for each
        choice.
        """
        self._costs.calculator = calculator or no_costs

    def update_wandb_config(self, config: Mapping[str, Any]) -> None:
        """Adds to the config of the W&B run, and of other trackers' runs; kept until there is one.

        Raises ConfigurationError (a ValueError) for a value that was set to another, TypeError for no dict.
        """
        self._run_log.update_config(self, config)

    def _log_metrics(self, metrics: Mapping[str, float], split: str, step: int) -> None:
        """One row of numbers, for programs that call `log`'s inner part themselves. Blocking."""
        self._run_log.write(self, LogEntry(groups=None, split=split, metrics=metrics, step=step))

    def _get_wandb_run(self) -> Any:
        """The W&B run of this model, started if it is not open; None where the model does not report."""
        return self._run_log.wandb_run(self)

    def read_state(self) -> dict[str, Any] | None:
        """Returns the program's own state as it was last written, or None."""
        return read_state(self._folder())

    def overwrite_state(self, state: Mapping[str, Any]) -> None:
        """Replaces the state. The file is complete at any moment; the log's own entry in it stays."""
        overwrite_state(self._folder(), state)

    def merge_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Merges into the state, dicts key by key; returns the whole state."""
        return merge_state(self._folder(), state)

    @deprecated("write_state is the older name of overwrite_state")
    def write_state(self, state: Mapping[str, Any]) -> None:
        """The older name of `overwrite_state`."""
        self.overwrite_state(state)

    def _folder(self) -> Path:
        folder = Path(get_model_dir(self))
        own = Path(self.project) / "models" / stored_name(self)
        if ".." in own.parts or own.is_absolute():
            raise ConfigurationError(
                f"project and name of a model name folders: {str(own)!r} leads elsewhere"
            )
        return folder

    def _get_output_dir(self) -> str:
        return str(self._folder())


_LOGGER = logging.getLogger(__name__)


class TrainableModel(Model[ConfigT, StateT], Generic[ConfigT, StateT]):
    """A model to train: a base model and its own LoRA adapter.

    base_model: a hub name, a local folder, a GGUF file, or a built-in model (`art/nano`, `art/smollm2`).
    lora_config: the adapter's shape (`art.LoRAConfig`); `peft_args` below is its older form.
    _internal_config: `peft_args` (the adapter's shape) and `trainer_args` (the optimizer); with
    `init_args={"full_finetuning": True}` all weights are trained instead of a LoRA; `chat_template_kwargs`
    go along with every request. It may also be assigned before `register`. Unknown names are refused.
    """

    base_model: str
    trainable: bool = True
    lora_config: dict[str, Any] | None = None

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
        lora_config: LoRAConfig | None = None,
        _internal_config: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if lora_config is not None:
            kwargs["lora_config"] = dict(lora_config)
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
        internal = copy.deepcopy(dict(_internal_config)) if _internal_config else {}
        if lora_config is not None:
            adapter = peft_arguments(lora_config)
            if internal.setdefault("peft_args", adapter) != adapter:
                raise ConfigurationError("lora_config and _internal_config['peft_args'] differ: give one")
        self._internal_config = internal or None

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Returns the fields as pydantic does, with `_internal_config`."""
        dumped = super().model_dump(**options)
        include, exclude = options.get("include"), options.get("exclude") or ()
        if "_internal_config" in exclude or (include is not None and "_internal_config" not in include):
            return dumped
        redact = without_keys if options.get("mode") == "json" else with_keys_hidden
        return dumped | {"_internal_config": redact(copy.deepcopy(self._internal_config))}

    async def register(
        self, backend: Backend, _openai_client_config: Mapping[str, Any] | None = None
    ) -> None:
        """Registers the model with a backend: it can be sampled and trained afterwards.

        _openai_client_config: how its server is set up (`art.dev.OpenAIServerConfig`).
        """
        self._openai_client_config = dict(_openai_client_config) if _openai_client_config else None
        await super().register(backend)
        await asyncio.to_thread(self._run_log.open_trackers, self)

    def _make_client(self) -> openai.AsyncOpenAI:
        if self._backend is not None:
            return self._face().openai_client(self)
        if self.inference_api_key is not None and self.inference_base_url is not None:
            return super()._make_client()
        raise NotRegisteredError(
            "OpenAI client not yet available on this trainable model. "
            "You must call `await model.register(backend)` first."
        )

    def _template_arguments(self) -> Mapping[str, Any] | None:
        return (self._internal_config or {}).get(CHAT_TEMPLATE_KWARGS)

    async def get_step(self) -> int:
        """Returns the newest step: 0 is the untrained adapter, each training step adds one.

        If a stopped program left training jobs, this waits until they have ended and logs their steps. So
        `range(await model.get_step(), steps)` makes exactly the steps that are missing. Raises DeadlineError
        for a job that does not end.
        """
        face: Any = self._face()
        step: int = await face.get_step(self)
        # To ask for a job resumes it: where a model is only evaluated, nobody does.
        if hasattr(face, "training_result") and getattr(face, "resumes_jobs", True):
            await TrainLog(self).finish(lambda job_id: face.training_result(self, job_id))
        return step

    async def train(
        self,
        trajectory_groups: Iterable[TrajectoryGroup | None],
        config: TrainConfig | None = None,
        _config: Mapping[str, Any] | None = None,
        verbose: bool = False,
        **options: Unpack[JobOptions],
    ) -> TrainResult:
        """Trains on groups of trajectories and logs them with the result's metrics at the new step.

        config: learning rate, algorithm and so on. _config and options: further keywords of the backend's
        `train`; options win over _config, and that over config. Groups that are None (a judge gave them up)
        are left out; a list of trajectories is a group. Rollouts that ask for `get_inference_name()`
        afterwards sample from the new step.
        """
        check_call_config(config, TrainConfig)
        given = gathered_groups(trajectory_groups, "train()")
        groups = [group for group in given if group is not None]
        if groups and len(groups) < len(given):
            _LOGGER.warning(
                "%d of %d groups are None (a judge gave them up) and are left out",
                len(given) - len(groups),
                len(given),
            )
        chosen = (config or TrainConfig()).keywords()
        chosen = {"learning_rate": TrainConfig().learning_rate, **chosen, **(_config or {}), **options}
        # Judges that gave up on each group do not end a run; a batch without any group is a mistake.
        sent: list[Any] = groups or given
        face: Any = self._face()

        async def train(**job: str) -> TrainResult:
            result: TrainResult = await face.train(self, sent, verbose=verbose, **chosen, **job)
            return result

        named = chosen.get("job_id") is not None
        if not named:
            chosen.pop("job_id", None)
        return await self._train_and_log(groups, train, named=named)

    async def _train_and_log(
        self,
        groups: list[TrajectoryGroup] | None,
        train: Callable[..., Awaitable[TrainResult]],
        *,
        named: bool = False,
    ) -> TrainResult:
        """Makes a step and logs it, once, wherever this program is stopped.

        train: takes a `job_id` where the backend can tell later what came of a job. named: the program has
        named its job itself, and asks for its result itself.
        """
        # The backend says why it refuses what are no groups.
        refused = not all(isinstance(group, TrajectoryGroup) for group in groups or ())
        if named or refused or not hasattr(self._face(), "training_result"):
            result = await train()
            if groups is not None or result.metrics:
                await self.log(groups, split="train", metrics=result.metrics, step=result.step)
            return result
        log, job_id = TrainLog(self), uuid4().hex
        trained_groups = groups or []
        async with log.under_way(job_id, trained_groups):
            result = await train(job_id=job_id)
            await log.write(job_id, result.step, result.metrics, {"train": trained_groups})
        return result

    async def train_sft(
        self,
        trajectories: Iterable[SftExample],
        config: TrainSFTConfig | None = None,
        _config: Mapping[str, Any] | None = None,
        verbose: bool = False,
        log_metrics: bool = True,
    ) -> TrainResult:
        """Fine-tunes on the assistant messages of the trajectories and logs the metrics at the new step.

        trajectories: trajectories, or rows: dicts with `messages`, with `conversations`, or with `prompt` and
        `completion`, in a list or a `datasets.Dataset`. One call makes one step; without trajectories nothing
        happens and nothing is logged. config: learning rate (one, or one a batch), batch size and the turns
        to learn. log_metrics: False writes no row; the metrics are in the result.
        """
        from art.client.sft.sft_request import refuse_sft_options

        check_call_config(config, TrainSFTConfig)
        refuse_sft_options(_config)
        face: Any = self._face()

        async def train(**job: str) -> TrainResult:
            started = time.monotonic()
            result: TrainResult = await face.train_sft(self, trajectories, config, verbose=verbose, **job)
            if result.metrics:
                result.metrics["time/step_trainer_s"] = time.monotonic() - started
            return result

        return await (self._train_and_log(None, train) if log_metrics else train())

    async def delete_checkpoints(self, best_checkpoint_metric: str = "val/reward") -> list[int]:
        """Deletes all checkpoints except the newest and the best one; returns the deleted steps.

        The best is the step with the highest mean of `best_checkpoint_metric` in `history.jsonl`, the later
        one of equals. Where no row has the metric a warning says so: nothing is deleted, or for the default
        metric all but the newest.
        """
        metric, history = best_checkpoint_metric, ModelPaths.of_model(self).history
        keep = {await self.get_step()}
        read = self._read_metrics.setdefault((history, metric), MetricHistory(history, metric))
        if (best := read.best_step()) is not None:
            keep.add(best)
        elif metric == "val/reward":  # programs that never evaluate call it
            _LOGGER.warning("no row of %s has %r: only the newest checkpoint is kept", history, metric)
        else:
            close = ", ".join(closest_metrics(history, metric)) or "no metric at all"
            _LOGGER.warning("no row of %s has %r: nothing is deleted. It has %s", history, metric, close)
            return []
        return await self._face().delete_checkpoints(self, sorted(keep))


def __getattr__(name: str) -> Any:
    """`AsyncOpenAI`, for tests that put a class of their own in its place."""
    if name == "AsyncOpenAI":
        with import_lock:
            from openai import AsyncOpenAI

        return AsyncOpenAI
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
