"""`RemoteBackend`: models registered, sampled and trained on a server that is reached over HTTP."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Unpack
from uuid import uuid4

from art.backend import TrainOptions
from art.client.http.connection import GONE_S, ServerConnection, model_path, named_path
from art.client.options.declared_options import signed_with
from art.client.options.train_options import KEYWORDS, refuse_unknown_keywords, with_defaults
from art.client.pinned_steps import PinnedStep, name_of_step, pinned
from art.client.requests.jobs import JobDeadlines, follow_job, run_job
from art.client.requests.registration import ServerConfig, register_model, register_request, server_config
from art.client.requests.train_outcome import (
    DivergenceWatch,
    check_rollouts,
    check_sheet,
    warn_context_only,
    warn_identical,
    warn_one_seed,
    warn_rate,
    warn_untrained,
)
from art.client.requests.train_request import (
    algorithm_of,
    check_any_trajectory,
    job_request,
    train_groups,
    warn_edited,
)
from art.client.sft import sft_request as sft
from art.compat.deferred_method import DeferredMethod
from art.errors import ARTError, ConfigurationError, NotFoundError
from art.process.in_use import InUse
from art.process.interrupt import ShortCancellation
from art.tracking.folders import stored_name
from art.tracking.names import NOTHING_TRAINED, sheet_metrics
from art.tracking.progress import open_phases, show_log
from art.tracking.run_facts import note_training
from art.tracking.step_lines import log_sft_step, log_step
from art.trajectories import gathered_groups
from art.types import TrainResult, TrainSFTConfig
from art.wire.jobs import JobEvent, JobInfo, SftJobRequest, TrainResultInfo
from art.wire.models import (
    UI_LINK_ROUTE,
    DeleteCheckpointsReply,
    DeleteCheckpointsRequest,
    DeleteModelReply,
    ForkReply,
    ForkRequest,
    ModelInfo,
    ModelList,
    ModelSummary,
    PagesLink,
    RegisterRequest,
    UnloadStepsReply,
    UnloadStepsRequest,
    find_summary,
)

if TYPE_CHECKING:
    import openai

    from art.backend import AnyModel, AnyTrainableModel, SftExample
    from art.client.http.openai_client import SampledTexts
    from art.trajectories import TrajectoryGroup


_OLDER = "art_extensions.compat.backend_methods"
ModelKey = tuple[str, str]
"""Project and name."""

PAGES_LINK_S = 20.0
FORK_S = 1800.0
"""A registered model waits for the end of its running job."""
_UNFINISHED = frozenset({"queued", "running"})
"""States of a job."""

_log = logging.getLogger(__name__)


class RemoteBackend:
    """Register, sample and train on a server: `RemoteBackend("https://gpu.example.org:8000", api_key)`.

    deadlines: how long a training job may be silent, and take in all. gone_s: a server at whose address
    nobody answers is waited for so many seconds, by every call and completion; then these raise
    ServerUnreachableError.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        deadlines: JobDeadlines | None = None,
        gone_s: float = GONE_S,
    ) -> None:
        self._url, self._key = base_url.rstrip("/").removesuffix("/v1"), api_key
        self._deadlines = deadlines or JobDeadlines()
        self._registered: dict[tuple[str, str], RegisterRequest] = {}
        self.resumes_jobs = True
        """Whether a model that is registered goes on with the training jobs that an earlier server left
        unfinished. Not where it is only evaluated."""
        self._in_use = InUse[tuple[ModelKey, int]]()
        """Steps."""
        self._told_context: set[tuple[str, str]] = set()
        self._told_rate: set[str] = set()
        self._told_edits: set[str] = set()
        self._told_seeds: set[str] = set()
        self._told_identical: set[str] = set()
        self._sampled: SampledTexts | None = None
        """The sampled texts of all clients; made with the first client, because it needs `openai`."""
        self._followed_jobs = InUse[str]()
        """Training jobs that a call waits for."""
        self._without_left_jobs: set[ModelKey] = set()
        """Models whose jobs of stopped programs have ended."""
        self._step_ended: dict[ModelKey, float] = {}
        """When the newest step of each model ended, by the monotonic clock."""
        self._watches: defaultdict[ModelKey, DivergenceWatch] = defaultdict(DivergenceWatch)
        self._connection = ServerConnection(self._address, self._revive, gone_s=gone_s)

    async def _address(self) -> tuple[str, str]:
        """Returns the server's address and key."""
        return self._url, self._key

    async def _revive(self) -> None:
        """Waits for a server that did not answer. A server of somebody else can only be waited for."""

    async def register(self, model: AnyModel) -> None:
        """Make the model known to the server and tell it where it is served."""
        if not model.trainable:
            return
        trainable: AnyTrainableModel = model  # type: ignore[assignment]
        server = server_config(trainable._openai_client_config)
        request = register_request(trainable, server)
        self._place(server)
        if runtime := (trainable._internal_config or {}).get("vllm_runtime"):
            self._choose_runtime(runtime)
        show_log()
        with open_phases(model.name) as begin_phase, ShortCancellation():
            await self._start_server(begin_phase)
            info = await register_model(self._connection, request, begin_phase, resume=self.resumes_jobs)
        self._registered[model.project, stored_name(model)] = request
        self._without_left_jobs.discard((model.project, stored_name(model)))
        url, key = await self._address()
        model.inference_base_url, model.inference_api_key = f"{url}/v1", key
        model.inference_model_name = info.inference_name

    async def _start_server(self, begin_phase: Callable[[str], None]) -> None:
        """Starts the server, if that is this backend's to do."""

    def _place(self, server: ServerConfig) -> None:
        """Let the server listen where the configuration says. Raises ConfigurationError where it cannot."""
        if server.place:
            raise ConfigurationError(
                f"_openai_client_config['server_args'] gives {', '.join(server.place)}, but this server runs "
                f"already, at {self._url}; that is for LocalBackend"
            )

    def _choose_runtime(self, runtime: Mapping[str, Any]) -> None:
        """Raises ConfigurationError for a vLLM server that a model names: the server's owner chooses."""
        if runtime.get("mode", "managed") != "managed":
            raise ConfigurationError(
                f"_internal_config['vllm_runtime'] gives mode {runtime['mode']!r}, but this server runs "
                f"already, at {self._url}, with its engine; that is for LocalBackend"
            )

    def openai_client(self, model: AnyTrainableModel) -> openai.AsyncOpenAI:
        """A client that names the rollout with each request."""
        from art.client.http.openai_client import SampledTexts, openai_client

        if model.inference_base_url is None or model.inference_api_key is None:
            raise RuntimeError(f"model {model.name!r} has no endpoint; register it first")
        client = openai_client(
            base_url=model.inference_base_url,
            api_key=model.inference_api_key,
            revive=self._revive,
            gone_s=self._connection.gone_s,
        )
        self._sampled = self._sampled or SampledTexts()
        client.observers.append(self._sampled.observe)
        return client

    @signed_with(KEYWORDS)
    async def train(
        self,
        model: AnyTrainableModel,
        trajectory_groups: Iterable[TrajectoryGroup],
        **options: Unpack[TrainOptions],
    ) -> TrainResult:
        """One training step on groups of trajectories; the new step is served when this returns.

        `docs/reference/options.md` says what each keyword does. `algorithm` takes a name of
        `docs/reference/algorithms.md`, a dict of a name and parts, or an `art.Algorithm`; without
        one it is `art`, by which every trajectory counts the same, with the loss that `loss_fn`
        names. An unknown one is refused, with the name that was meant.

        Raises RolloutsFailedError where every rollout failed, TokenMismatchError for choices without a
        sample, ConfigurationError for options that would not act or do not fit each other,
        UnbalancedSheetError when rollouts are unaccounted for, DeadlineError, and the job's own error.
        """
        refuse_unknown_keywords(options)
        chosen = with_defaults(options)
        if (path := chosen["kl_ref_adapter_path"]) is not None:
            chosen["kl_ref_adapter_path"] = await self._reference_folder(model, path)
        given = bool(chosen["allow_training_without_logprobs"])
        sent = gathered_groups(trajectory_groups, "train()")
        check_any_trajectory(sent)
        parts = algorithm_of(options).reward_parts
        groups = train_groups(sent, given=given, reward_parts=parts)
        if self._sampled is not None:
            warn_edited(sent, self._sampled.is_edited, model.name, self._told_edits)
        discarded = list(chosen.get("discarded_groups") or ())
        replaced = [one for group in sent if group is not None for one in group._replaced]
        aside = train_groups(discarded, given=given, after=groups)
        aside += train_groups(replaced, given=given, after=[*groups, *aside], replaced=True)
        job_id = chosen.get("job_id") or uuid4().hex
        request = job_request(job_id, groups, aside, model._internal_config, chosen)
        begun = time.monotonic()
        with self._following(model, job_id):
            info = await run_job(
                self._connection,
                f"{model_path(model)}/train",
                request,
                deadlines=self._deadlines,
                title=f"train {model.name}" if chosen["verbose"] else None,
            )
        note_training(model, request, info.metrics)
        check_sheet(info.sheet, [*request.groups, *request.discarded])
        self._log_step(model, info, sent, [*discarded, *replaced], begun)
        warn_untrained(info.sheet, model.name, info.step, request.groups)
        warn_context_only(info.sheet, model.name, info.step, self._told_context)
        warn_identical(info.sheet, info.metrics, model.name, info.step, self._told_identical)
        warn_one_seed(info.metrics, model.name, info.step, self._told_seeds)
        warn_rate(request.optimizer.learning_rate, info.metrics, model.name, self._told_rate)
        self._watches[model.project, stored_name(model)].warn(info, request.groups, model.name)
        result = self._trained(info)
        if not chosen["save_checkpoint"]:
            result.checkpoint_path = None
            return result
        return self._with_artifact(model, result)

    def _log_step(
        self,
        model: AnyTrainableModel,
        info: TrainResultInfo,
        groups: Iterable[TrajectoryGroup],
        discarded: Iterable[TrajectoryGroup],
        begun: float,
    ) -> None:
        """The step's line in the log, with the seconds since the model's step before."""
        show_log()
        key, now = (model.project, stored_name(model)), time.monotonic()
        before = self._step_ended.get(key)
        self._step_ended[key] = now
        step_s = None if before is None else now - before
        log_step(
            model.name,
            info.step,
            groups,
            discarded,
            info.sheet,
            metrics=info.metrics,
            training_s=now - begun,
            step_s=step_s,
        )

    def _with_artifact(self, model: AnyTrainableModel, result: TrainResult) -> TrainResult:
        """The result of a step whose checkpoint is kept."""
        return result

    async def _reference_folder(self, model: AnyTrainableModel, path: str) -> str:
        """A reference adapter's folder as the server knows it."""
        return path

    async def train_sft(
        self,
        model: AnyTrainableModel,
        trajectories: Iterable[SftExample],
        config: TrainSFTConfig | None = None,
        *,
        expected_step: int | None = None,
        verbose: bool = False,
        job_id: str | None = None,
    ) -> TrainResult:
        """Supervised training on what assistants say in the trajectories or rows, dicts and choices alike.

        One call makes one step, whatever the number of its batches; the new step is served when this
        returns. Without trajectories nothing happens. job_id: as for `train`. Raises ConfigurationError,
        RequestError, UnbalancedSheetError, DeadlineError, and the job's own error.
        """
        request = sft.sft_request(
            job_id or uuid4().hex,
            trajectories,
            config or TrainSFTConfig(),
            model._internal_config,
            expected_step=expected_step,
        )
        if request is None:
            return TrainResult(await self.get_step(model))
        conversations = sum(len(batch) for batch in request.batches)
        return await self.train_on(model, request, rollouts=conversations, verbose=verbose)

    async def train_on(
        self, model: AnyTrainableModel, request: SftJobRequest, *, rollouts: int, verbose: bool
    ) -> TrainResult:
        """Runs a job on conversations, of which the sheet has so many `rollouts`. Raises as `train_sft`."""
        sft.check_sft_size(request)
        begun = time.monotonic()
        with self._following(model, request.job_id):
            info = await run_job(
                self._connection,
                f"{model_path(model)}/{request.VERB}",
                request,
                deadlines=self._deadlines,
                title=f"train {model.name}" if verbose else None,
                submit_s=sft.SUBMIT_S,
            )
        note_training(model, request, info.metrics)
        check_rollouts(info.sheet, rollouts)
        show_log()
        seconds = time.monotonic() - begun
        log_sft_step(model.name, info.step, rollouts, info.metrics, info.sheet, seconds)
        return self._with_artifact(model, self._trained(info))

    def _trained(self, info: TrainResultInfo) -> TrainResult:
        return self._result(info, {**NOTHING_TRAINED, **info.metrics, **sheet_metrics(info.sheet)})

    def _result(self, info: TrainResultInfo, metrics: dict[str, float]) -> TrainResult:
        return TrainResult(info.step, metrics, sheet=info.sheet, checkpoint_path=info.checkpoint_path)

    @contextlib.contextmanager
    def _following(self, model: AnyTrainableModel, job_id: str) -> Iterator[None]:
        """While the block runs the job is this call's; if the block fails, the job may go on without it."""
        try:
            with self._followed_jobs.using(job_id), ShortCancellation():
                yield
        except BaseException:
            self._without_left_jobs.discard((model.project, stored_name(model)))
            raise

    async def get_step(self, model: AnyTrainableModel) -> int:
        """The newest step of the model, after the jobs that a stopped program left have ended.

        Such jobs are those that were unfinished when this program registered the model, and those of calls of
        `train` that were interrupted. A job that a call is waiting for is not waited for here, and a backend
        that resumes no jobs waits for none. Raises DeadlineError for a job that does not end.
        """
        key = model.project, stored_name(model)
        info = await self._connection.call("GET", model_path(model), ModelInfo)
        left = [job_id for job_id in info.unfinished_jobs if job_id not in self._followed_jobs]
        if left and self.resumes_jobs and key not in self._without_left_jobs:
            await self._wait_for_left_jobs(model, left)
            info = await self._connection.call("GET", model_path(model), ModelInfo)
        self._without_left_jobs.add(key)
        return info.step

    async def _wait_for_left_jobs(self, model: AnyTrainableModel, left: list[str]) -> None:
        """Raises DeadlineError."""
        show_log()
        ids, hours = ", ".join(left), self._deadlines.total_s / 3600
        _log.info(
            "%s: waiting for training jobs that a stopped program left (%s), each for at most %g hours",
            model.name,
            ids,
            hours,
        )
        for job_id in left:
            with contextlib.suppress(NotFoundError):
                await self._ended_job(job_id)

    async def delete_checkpoints(self, model: AnyTrainableModel, keep_steps: Iterable[int]) -> list[int]:
        """Delete all checkpoints but these, the newest and those in use; returns the deleted steps."""
        request = DeleteCheckpointsRequest(keep_steps=self._with_used(model, keep_steps))
        path = f"{model_path(model)}/delete_checkpoints"
        return (await self._connection.call("POST", path, DeleteCheckpointsReply, request)).deleted

    async def pages_link(self) -> str:
        """Returns a link to the pages of the runs. It opens one browser, once and within an hour.

        Raises NotFoundError (an older server), ServerError (one without the extra `ui`).
        """
        found = await self._connection.call("POST", UI_LINK_ROUTE, PagesLink, deadline_s=PAGES_LINK_S)
        url, _ = await self._address()
        return f"{url}{found.path}"

    async def list_models(self) -> list[ModelSummary]:
        """Returns the registered models with their steps, rewards and sizes, by project and name."""
        return (await self._connection.call("GET", "/art/models", ModelList)).models

    async def delete_model(self, model: AnyModel | str, *, dry_run: bool = False) -> ModelSummary:
        """Delete a model, given itself or as `"project/name"`, with its checkpoints; returns what is deleted.

        Logs on this machine stay. dry_run: delete nothing. Raises NotFoundError when it is not registered,
        RequestError while a training job of it is unfinished.
        """
        key = model if isinstance(model, str) else f"{model.project}/{stored_name(model)}"
        found = find_summary(key, await self.list_models())
        if not dry_run:
            # Gone at the second asking means that the first was heard and its reply lost.
            with contextlib.suppress(NotFoundError):
                path = named_path(found.project, found.name)
                await self._connection.call("DELETE", path, DeleteModelReply)
            self._registered.pop((found.project, found.name), None)
        return found

    async def fork_checkpoint(
        self,
        model: AnyModel,
        from_model: str,
        *,
        from_project: str | None = None,
        step: int | None = None,
        not_after_step: int | None = None,
        weights_only: bool = False,
    ) -> int:
        """Copies a checkpoint of another model to `model`, before or right after `register`, under the same
        number.

        It resumes exactly: weights, optimizer, RNG; or begins with the adapter alone (`weights_only`), as for
        another optimizer. Without `step` (exactly this one) and `not_after_step`
        (the newest up to this one) it is the newest. Returns the step that the model is at now. Raises
        CheckpointMissingError, StepMissingError, and RequestError when the model has steps of its own.
        """
        if step is not None and not_after_step is not None:
            raise ConfigurationError(f"fork_checkpoint({step=}, {not_after_step=}): give one")
        request = ForkRequest(
            from_name=from_model,
            from_project=from_project,
            step=step,
            not_after=not_after_step,
            weights_only=weights_only,
        )
        path = f"{model_path(model)}/fork"
        reply = await self._connection.call("POST", path, ForkReply, request, deadline_s=FORK_S)
        return reply.step

    # -- which step answers, and which is kept --

    def _model_inference_name(self, model: AnyModel, step: int | None = None) -> str:
        """Returns the name to send as `model`: this step's name, else that of the step leased in this
        context, else the one that always means the newest.
        """
        own = stored_name(model)
        name = model.inference_model_name or own
        if any(other == own and project != model.project for project, other in self._registered):
            # The bare name was given while it was the only one; now the server refuses it as ambiguous.
            name = f"{model.project}/{own}" if name == own and model.trainable else name
        return name_of_step(model, name, step)

    @asynccontextmanager
    async def adapter_lease(self, model: AnyModel, step: int) -> AsyncIterator[None]:
        """`async with backend.adapter_lease(model, 3)`: inside, in this task and those it starts,
        `model.get_inference_name()` is step 3's, and no call of this backend deletes or unloads that step.
        """
        names = frozenset({model.name, stored_name(model)})
        with pinned(PinnedStep(names=names, project=model.project, step=step)):
            async with self.adapter_retention_lease(model, step):
                yield

    @asynccontextmanager
    async def adapter_retention_lease(self, model: AnyModel, step: int) -> AsyncIterator[None]:
        """`async with backend.adapter_retention_lease(model, 3)`: inside, no call of this backend deletes or
        unloads step 3. What is sampled stays as it is.
        """
        with self._in_use.using(((model.project, stored_name(model)), step)):
            yield

    def _with_used(self, model: AnyModel, steps: Iterable[int]) -> list[int]:
        """The steps, and those of the model that are in use; sorted."""
        key = model.project, stored_name(model)
        return sorted({step for used, step in self._in_use if used == key}.union(steps))

    async def prune_model_adapters(self, model: AnyModel, retain_steps: Iterable[int]) -> list[int]:
        """Unload all steps from the engine but these, the newest and those in use; returns the unloaded.

        Their checkpoints stay: a request that names one loads it again.
        """
        request = UnloadStepsRequest(keep_steps=self._with_used(model, retain_steps))
        reply = await self._connection.call(
            "POST", f"{model_path(model)}/unload_steps", UnloadStepsReply, request
        )
        return reply.unloaded

    # -- jobs of an earlier process: the server finishes what it accepted, whatever happens to its client --

    async def training_result(self, model: AnyTrainableModel, job_id: str) -> TrainResult | None:
        """Returns the result of the job that `train(..., job_id=...)` named; waits for one that is still
        running.

        None: the server has no such job, or it failed; its batch made no step. Raises DeadlineError.
        """
        try:
            info = await self._ended_job(job_id)
        except NotFoundError:
            return None
        if info.result is None:
            _log.warning(
                "training job %s of %s made no step: %s", job_id, model.name, info.error or info.state
            )
        return None if info.result is None else self._trained(info.result)

    async def _ended_job(self, job_id: str) -> JobInfo:
        """Returns the job when it has ended. Raises NotFoundError, and DeadlineError if it does not end."""
        info = await self._job(job_id)
        if info.state not in _UNFINISHED:
            return info
        try:
            await follow_job(self._connection, job_id, _ignore_event, self._deadlines)
        except ARTError as error:
            if (info := await self._job(job_id)).state in _UNFINISHED:
                raise error
            return info
        return await self._job(job_id)

    async def checkpoint_steps(self, model: AnyTrainableModel) -> list[int]:
        """The steps that have a checkpoint on the server, in order."""
        return (await self._connection.call("GET", model_path(model), ModelInfo)).checkpoints

    async def _job(self, job_id: str) -> JobInfo:
        return await self._connection.call("GET", f"/art/jobs/{job_id}", JobInfo)

    async def close(self) -> None:
        """Close the connections. The server goes on."""
        await self._connection.close()

    async def __aenter__(self) -> RemoteBackend:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> RemoteBackend:
        return self  # copies of a model share their backend

    # By these names programs for other releases and their test doubles call a backend.
    exact_adapter_lease = DeferredMethod(f"{_OLDER}:exact_adapter_lease")
    _get_step = DeferredMethod(f"{_OLDER}:get_step")
    _delete_checkpoint_files = DeferredMethod(f"{_OLDER}:delete_checkpoint_files")
    _prepare_backend_for_training = DeferredMethod(f"{_OLDER}:prepare_backend_for_training")
    _train_model = DeferredMethod(f"{_OLDER}:train_model")
    _train_sft = DeferredMethod(f"{_OLDER}:train_sft")


def _ignore_event(event: JobEvent) -> None:
    """Ignores an event without an observer."""
