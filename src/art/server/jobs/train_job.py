"""One training job, from sample ids to the served step; with the factor of its learning rate, its reference
and its teacher.

A reference or a teacher on the same base is a LoRA's folder (`reference_folder`). A teacher behind HTTP is
asked as vLLM (0.32) answers: `POST {url}/completions` with token ids as the prompt and `prompt_logprobs: 0`
gives `choices[0].prompt_logprobs`, a list of null (the first id has no logprob) and
`{"<id>": {"logprob": x, ...}}`. The teacher must share the tokenizer, since it is shown ids.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

from art.batch.algorithms import check_algorithm
from art.batch.balance_sheet import masked
from art.batch.batch_types import Batch, GroupRow
from art.batch.build import build_batch, scored_paths, with_teacher
from art.batch.encode import encode_batch
from art.errors import (
    AuthenticationError,
    ConfigurationError,
    DeadlineError,
    NotFoundError,
    RequestError,
    ServerError,
    ServerUnreachableError,
    TokenMismatchError,
    TrainingError,
)
from art.rendering.chat_renderer import ChatRenderer
from art.server.checkpoints.canary import canary_rows
from art.server.checkpoints.checkpoints import Checkpoints
from art.server.jobs.batch_plot import plot_batch, plot_needs
from art.server.jobs.job_table import TrainingJob
from art.server.jobs.step_files import keep_tokens, rollout_records, write_rollouts
from art.server.jobs.step_job import StepJob
from art.server.jobs.train_rows import (
    check_origin,
    group_rows,
    judge_figures,
    one_seed_groups,
    policy_ages,
    refuse_untrainable,
)
from art.server.ledger.face import SampleLedger
from art.server.ledger.schema import SampleRecord, read_images
from art.server.promotion.promote import Progress, ServedModel
from art.server.settings import TeacherSettings, is_loopback
from art.server.tenancy import tenant_of
from art.server.workers.trainer_worker import TrainedModel
from art.wire.algorithm import Algorithm, TeacherSpec
from art.wire.jobs import RateSpec, TrainJobRequest, TrainResultInfo
from art.wire.samples import image_runs
from art.wire.training import TrainRequest


def rate_factor(spec: RateSpec, groups: Sequence[GroupRow], batch: Batch) -> float:
    """Returns (trained rollouts) ** power, times the mean spread of the groups' rewards if requested.

    Raises RequestError where that is 0: nothing would be trained.
    """
    factor: float = float(batch.sheet.fates["trained"].rollouts) ** spec.rollouts_power
    if spec.by_reward_std:
        factor *= reward_std(groups)
    if not (np.isfinite(factor) and factor > 0):
        raise RequestError(
            f"the learning rate would be multiplied by {factor!r} ({spec!r}); leave these options out",
            status=400,
            code="invalid_rate",
            param="rate",
        )
    return factor


def reward_std(groups: Sequence[GroupRow]) -> float:
    """The mean of the groups' population standard deviations; groups of fewer than two rewards say nothing.

    >>> from art.batch.batch_types import RolloutRow
    >>> def group(*rewards):
    ...     return GroupRow(rollouts=[RolloutRow(rollout="r", reward=one, samples=[]) for one in rewards])
    >>> reward_std([group(0.0, 1.0), group(2.0, 2.0), group(5.0), group(None, 3.0)])
    0.25
    """
    kept = [group for group in groups if not group.discarded]
    rewards = [[one.reward for one in group.rollouts if one.reward is not None] for group in kept]
    spreads = [float(np.std(one)) for one in rewards if len(one) > 1]
    return float(np.mean(spreads)) if spreads else 0.0


REFERENCES = Path("server") / "references"
"""Below the data folder: adapters from elsewhere, put there by whoever may write to it."""


def reference_folder(algorithm: Algorithm, checkpoints: Checkpoints) -> str | None:
    """Folder of the reference's or teacher's checkpoint; None: the base without adapter, or none is needed.

    Of KL term and teacher at most one is another policy on the base (`check_algorithm` sees to it). Raises
    RequestError for a step that has no checkpoint, and for a folder that may not be read or is no adapter.
    """
    if algorithm.kl is not None and algorithm.kl.path is not None:
        return _adapter(algorithm.kl.path, checkpoints)
    if algorithm.kl is not None and algorithm.kl.reference == "step":
        part, step = "kl", algorithm.kl.step
    elif algorithm.teacher is not None and algorithm.teacher.kind == "step":
        part, step = "teacher", algorithm.teacher.step
    else:
        return None
    known = checkpoints.steps()
    if step is None or step not in known:
        raise RequestError(
            f"algorithm.{part}.step = {step!r}: the model has no checkpoint of that step; its steps: {known}",
            status=404,
            code="reference_not_found",
            param=f"algorithm.{part}.step",
        )
    return str(checkpoints.path(step))


def _adapter(path: str, checkpoints: Checkpoints) -> str:
    """A LoRA's folder, below the model's project or among the references that were put beside the server."""
    project = checkpoints.folder.parents[2]
    roots = (project, project.parent / REFERENCES)
    folder = Path(path).resolve()
    if not any(folder.is_relative_to(root.resolve()) for root in roots):
        raise RequestError(
            f"algorithm.kl.path = {path!r}: a reference adapter lies below its project's folder; use the "
            "checkpoint_path of one of its steps",
            status=400,
            code="reference_not_allowed",
            param="algorithm.kl.path",
        )
    if not (folder / "adapter_config.json").is_file():
        raise RequestError(
            f"algorithm.kl.path = {path!r} is no folder of a LoRA: it has no adapter_config.json",
            status=404,
            code="reference_not_found",
            param="algorithm.kl.path",
        )
    return str(folder)


_BUSY = frozenset({429, 500, 502, 503, 504})
_ROUNDING = 1e-3
"""A logprob so little above 0 is that of a probability rounded up to 1."""
_LONGEST_WAIT = 60.0


class HttpTeacher:
    """One endpoint. Raises ConfigurationError where the settings do not allow to ask it."""

    def __init__(self, spec: TeacherSpec, settings: TeacherSettings, *, listed_only: bool = False) -> None:
        assert spec.url is not None and spec.model is not None
        self.url, self.model = spec.url.rstrip("/"), spec.model
        self._settings = settings
        listed = self.url in {url.rstrip("/") for url in settings.urls}
        # For a tenant the server's own machine is foreign ground, too: its other services listen there.
        if not listed and (listed_only or not _on_this_machine(self.url)):
            # A tenant is not shown what the operator listed.
            where = "not" if listed_only else "neither on this machine nor"
            known = "" if listed_only else f" {settings.urls!r}"
            raise ConfigurationError(
                f"teacher url {self.url!r} is {where} one of the server's `teacher.urls`{known}: a job may "
                "not send the server elsewhere. List it in the server's settings or in the variable "
                "ART_TEACHER_URL."
            )
        self._key = settings.key if listed else None

    async def logprobs(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """`len(row) - 1` numbers a row: the logprob of each id given those before it, temperature 1.

        Raises DeadlineError, ServerUnreachableError, AuthenticationError, NotFoundError, RequestError and
        ServerError as the teacher answers, TokenMismatchError where it answers about other ids.
        """
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        gate = asyncio.Semaphore(self._settings.concurrency)
        async with httpx.AsyncClient(headers=headers, timeout=self._settings.request) as client:

            async def score(row: Sequence[int]) -> list[float]:
                async with gate:
                    return self._read(row, await self._ask(client, row))

            try:
                async with asyncio.timeout(self._settings.total), asyncio.TaskGroup() as group:
                    tasks = [group.create_task(score(row)) for row in rows]
            except TimeoutError as error:
                raise DeadlineError(
                    f"teacher {self.model!r} at {self.url} has not scored {len(rows)} rows within "
                    f"{self._settings.total:g} s (`teacher.total` of the server's settings)"
                ) from error
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _ask(self, client: httpx.AsyncClient, row: Sequence[int]) -> httpx.Response:
        body = {
            "model": self.model,
            "prompt": [int(one) for one in row],
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": 0,
        }
        for attempt in range(1, self._settings.attempts + 1):
            wait = self._settings.retry_wait * 2 ** (attempt - 1)
            try:
                response = await client.post(f"{self.url}/completions", json=body)
            except httpx.TransportError as error:
                problem: Exception = self._unreachable(error)
            else:
                if response.status_code == 200:
                    return response
                problem = self._refused(response)
                if response.status_code not in _BUSY:
                    raise problem
                wait = _asked_to_wait(response, wait)
            if attempt < self._settings.attempts:
                await asyncio.sleep(min(wait, _LONGEST_WAIT))
        raise problem

    def _unreachable(self, error: httpx.TransportError) -> Exception:
        if isinstance(error, httpx.TimeoutException):
            return DeadlineError(
                f"teacher {self.model!r} at {self.url} did not answer within {self._settings.request:g} s"
            )
        return ServerUnreachableError(
            f"teacher {self.model!r} at {self.url} cannot be reached ({type(error).__name__}: {error})"
        )

    def _refused(self, response: httpx.Response) -> ServerError:
        status = response.status_code
        kind: type[ServerError] = {
            401: AuthenticationError,
            403: AuthenticationError,
            404: NotFoundError,
        }.get(status, RequestError if status < 500 and status != 429 else ServerError)
        problem = response.text[:500]
        return kind(f"teacher {self.model!r} at {self.url} answers {status}: {problem}", status=status)

    def _read(self, row: Sequence[int], response: httpx.Response) -> list[float]:
        try:
            given = response.json()["choices"][0]["prompt_logprobs"]
            if not isinstance(given, list) or len(given) != len(row):
                raise TokenMismatchError(
                    f"teacher {self.model!r} at {self.url} gives {_size(given)} prompt logprobs for "
                    f"{len(row)} ids; it must answer `prompt_logprobs` as vLLM does"
                )
            return [self._logprob(place, one) for place, one in zip(row[1:], given[1:], strict=True)]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            if isinstance(error, TokenMismatchError):
                raise
            raise TokenMismatchError(
                f"teacher {self.model!r} at {self.url} gives no logprobs of the ids it was sent ({error!r}); "
                "it must share the tokenizer and answer `prompt_logprobs` as vLLM does"
            ) from error

    def _logprob(self, token: int, entry: Any) -> float:
        logprob = float(entry[str(int(token))]["logprob"])
        if not math.isfinite(logprob) or logprob > _ROUNDING:
            raise TokenMismatchError(
                f"teacher {self.model!r} at {self.url} gives the logprob {logprob!r} to id {int(token)}; "
                "logprobs are finite and at most 0"
            )
        return min(0.0, logprob)


def _on_this_machine(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and is_loopback(parts.hostname or "")


def _asked_to_wait(response: httpx.Response, otherwise: float) -> float:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return otherwise


def _size(answer: object) -> object:
    return len(answer) if isinstance(answer, list) else answer


UPDATES = "data/step_num_gradient_steps"


class TrainJob(StepJob):
    """Trains one step on groups of rollouts."""

    kind = "rl"

    def __init__(
        self,
        job: TrainingJob,
        request: TrainJobRequest,
        *,
        served: ServedModel,
        ledger: SampleLedger,
        renderer: ChatRenderer,
        progress: Progress,
        teachers: TeacherSettings,
    ) -> None:
        super().__init__(job, served=served, progress=progress)
        self.request = request
        self.ledger = ledger
        self.renderer = renderer
        self.teachers = teachers

    def mean_reward(self) -> float | None:
        rollouts = (one for group in self.request.groups for one in group.trajectories)
        rewards = [one.reward for one in rollouts if one.reward is not None]
        return fmean(rewards) if rewards else None

    async def run(self) -> TrainResultInfo:
        if (before := await self.committed()) is not None:
            return before
        check_algorithm(self.request.algorithm)
        teacher = self._teacher()
        opened = await self.open()
        reference = reference_folder(self.request.algorithm, self.served.checkpoints)
        records, removed = await self._records()
        oldest = opened.step - self._most_steps_off_policy()
        rows = await asyncio.to_thread(
            group_rows, self.request, records, self.renderer, oldest=oldest, removed=removed
        )
        plot_needs(self.request.compute)
        batch = await asyncio.to_thread(  # seconds for a large batch, in which requests are to be answered
            build_batch,
            rows,
            algorithm=self.request.algorithm,
            max_length=self.request.compute.max_length,
        )
        refuse_untrainable(rows, batch.sheet)
        batch = await self._with_images(batch)
        figures = {
            **judge_figures(self.request.groups),
            **one_seed_groups([*self.request.groups, *self.request.discarded], records),
        }
        if batch.empty:
            await self._keep_rollouts(opened.step + 1, rows, batch)
            return await self.carry_forward(opened.step, {**figures, **batch.metrics}, batch.sheet)
        samples = (row for group in rows for rollout in group.rollouts for row in rollout.samples)
        seen = ([*row.prompt_ids, *row.completion_ids] for row in samples)
        canary = await self.canary(opened, canary_rows(seen))
        if teacher is not None:
            batch = await _taught(batch, teacher)
        reference = await opened.trainer.find_reference(reference)
        request = self._train_request(opened, batch, reference, rate_factor(self.request.rate, rows, batch))
        await self.progress("training")
        body = await asyncio.to_thread(encode_batch, batch, request)
        await self.served.workers.rest()
        with self.served.clock.part("gradient"):
            trained = await opened.trainer.train(body, self.report_progress)
        if trained.step != opened.step + 1 and trained.metrics.get(UPDATES):
            raise TrainingError(
                f"the trainer is at step {trained.step} after training step {opened.step + 1}"
            )
        if self.request.compute.plot:
            await asyncio.to_thread(plot_batch, batch, self.served.checkpoints.folder.parent, opened.step + 1)
        if request.records_tokens:
            steps, settings = self.served.checkpoints.records, self.served.settings
            await keep_tokens(opened, batch, self.request, steps=steps, settings=settings)
        await self._keep_rollouts(opened.step + 1, rows, batch, masked=not trained.metrics[UPDATES])
        metrics = {**figures, **batch.metrics, **policy_ages(rows, opened.step), **trained.metrics}
        if not metrics[UPDATES]:
            return await self.carry_forward(opened.step, metrics, masked(batch.sheet))
        return await self.finish(opened, canary, metrics, batch.sheet)

    async def _keep_rollouts(
        self, step: int, rows: Sequence[GroupRow], batch: Batch, *, masked: bool = False
    ) -> None:
        steps = self.served.checkpoints.records
        records = rollout_records(self.request, rows, batch, masked=masked)
        await asyncio.to_thread(write_rollouts, steps, step, records)

    async def _with_images(self, batch: Batch) -> Batch:
        """The batch with the pictures that its negative ids name. Raises LostImageError."""
        tokens_T = batch.tree.tokens_T
        names = {run.name for run in image_runs(tokens_T.tolist())} if (tokens_T < 0).any() else set()
        if not names:
            return batch
        return replace(batch, tree=replace(batch.tree, images=await read_images(self.ledger.rows, names)))

    async def some_ids(self) -> Sequence[Sequence[int]]:
        trajectories = (trajectory for group in self.request.groups for trajectory in group.trajectories)
        ids = [trajectory.samples[0] for trajectory in trajectories if trajectory.samples]
        some = list(dict.fromkeys(ids))[:8]
        records, *_ = await self.ledger.readable(some, tenant=tenant_of(self.job.project))
        return [records[sample].prompt_ids for sample in some if sample in records]

    def _most_steps_off_policy(self) -> int:
        """The request's bound, or the server's where that is narrower."""
        asked, allowed = self.request.max_steps_off_policy, self.served.settings.max_off_policy_steps
        return allowed if asked is None else min(asked, allowed)

    async def _records(self) -> tuple[dict[str, SampleRecord], frozenset[str]]:
        """Ledger rows of every sample that the request names and that is not damaged, checked to be this
        model's own; and the samples that were too old to be kept.
        """
        groups = [*self.request.groups, *self.request.discarded]
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        ids = dict.fromkeys(sample for trajectory in trajectories for sample in trajectory.samples)
        tenant = tenant_of(self.job.project)
        records, damaged, removed = await self.ledger.readable(list(ids), tenant=tenant)
        for trajectory in trajectories:
            for sample in (
                name for name in trajectory.samples if name not in damaged and name not in removed
            ):
                check_origin(
                    records[sample],
                    trajectory.rollout,
                    self.job.model,
                    removals=self.served.model.removals,
                )
        return records, removed

    def _teacher(self) -> HttpTeacher | None:
        spec = self.request.algorithm.teacher
        if spec is None or spec.kind != "server":
            return None
        return HttpTeacher(spec, self.teachers, listed_only=tenant_of(self.job.project) is not None)

    def _train_request(
        self, opened: TrainedModel, batch: Batch, reference: str | None, factor: float
    ) -> TrainRequest:
        """One gradient step in the trainer's memory, or none where masks drop everything."""
        algorithm = self.request.algorithm
        updates = algorithm.updates.of_batch(batch.sheet.fates["trained"].rollouts)
        return TrainRequest(
            model=self.served.model.key,
            step=opened.step,
            algorithm=algorithm.model_copy(update={"updates": updates}),
            optimizer=self.request.optimizer,
            normalizer=batch.normalizer,
            sampling=list(batch.sampling),
            rewards=batch.rewards,
            reference=reference,
            rate_factor=factor,
            compute=self.request.compute,
        )


async def _taught(batch: Batch, teacher: HttpTeacher) -> Batch:
    """The batch with the logprobs of a teacher behind HTTP."""
    if batch.tree.images:
        raise RequestError(
            "a teacher behind HTTP is shown ids alone, and this batch has images: choose another algorithm, "
            "or a teacher that is one of the model's steps",
            status=400,
            code="unsupported_content",
            param="algorithm.teacher",
        )
    paths = scored_paths(batch.tree, batch.entries)
    rows = [batch.tree.tokens_T[path].tolist() for path in paths]
    return with_teacher(batch, paths, await teacher.logprobs(rows))
