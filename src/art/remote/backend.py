"""A server somewhere, reached over HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from art.errors import UnbalancedSheetError
from art.remote import options as chosen
from art.remote.connection import ServerConnection
from art.remote.groups import train_groups
from art.remote.jobs import JobDeadlines, follow_job
from art.tracking.names import sheet_metrics
from art.tracking.progress import Progress, open_progress
from art.types import TrainResult
from art.wire.algorithm import Algorithm
from art.wire.jobs import BalanceSheet, JobEvent, JobInfo, TrainGroup, TrainJobRequest, TrainResultInfo
from art.wire.models import DeleteCheckpointsReply, DeleteCheckpointsRequest, ModelInfo, RegisterRequest

if TYPE_CHECKING:
    import openai

    from art.backend import AnyModel, AnyTrainableModel
    from art.trajectories import TrajectoryGroup

REGISTER_S = 1800.0
"""A large base model is loaded on registration."""


class RemoteBackend:
    """Register, sample and train on a server: `RemoteBackend("https://gpu.example.org:8000", api_key)`.

    deadlines: how long a training job may be silent, and take in all.
    """

    def __init__(self, base_url: str, api_key: str, *, deadlines: JobDeadlines | None = None) -> None:
        self._url, self._key = base_url.rstrip("/").removesuffix("/v1"), api_key
        self._deadlines = deadlines or JobDeadlines()
        self._registered: dict[tuple[str, str], RegisterRequest] = {}
        self._connection = ServerConnection(self._address, self._revive)

    async def _address(self) -> tuple[str, str]:
        """Where the server is, and its key."""
        return self._url, self._key

    async def _revive(self) -> None:
        """Nobody answered. A server that somebody else runs can only be waited for."""

    async def register(self, model: AnyModel) -> None:
        """Make the model known to the server and tell it where it is served."""
        if not model.trainable:
            return
        trainable: AnyTrainableModel = model  # type: ignore[assignment]
        chosen.check_internal_config(trainable._internal_config)
        # What is wrong is refused now, not after an hour of rollouts.
        chosen.optimizer_spec(1.0, trainable._internal_config, None)
        lora, seed = chosen.lora_spec(trainable._internal_config)
        request = RegisterRequest(
            project=model.project, name=model.name, base_model=trainable.base_model, lora=lora, seed=seed
        )
        info = await self._connection.call("POST", "/art/models", ModelInfo, request, deadline_s=REGISTER_S)
        self._registered[model.project, model.name] = request
        url, key = await self._address()
        model.inference_base_url, model.inference_api_key = f"{url}/v1", key
        model.inference_model_name = info.inference_name

    def openai_client(self, model: AnyTrainableModel) -> openai.AsyncOpenAI:
        """A client that names the rollout with each request."""
        from art.remote.openai_client import openai_client

        if model.inference_base_url is None or model.inference_api_key is None:
            raise RuntimeError(f"model {model.name!r} has no endpoint; register it first")
        return openai_client(
            base_url=model.inference_base_url, api_key=model.inference_api_key, revive=self._revive
        )

    async def train(
        self,
        model: AnyTrainableModel,
        trajectory_groups: Iterable[TrajectoryGroup],
        *,
        learning_rate: float | None = 5e-6,
        algorithm: str | Algorithm | Mapping[str, Any] | None = None,
        loss_fn: str | None = None,
        loss_fn_config: Mapping[str, Any] | None = None,
        epsilon: float | None = None,
        epsilon_high: float | None = None,
        adam_params: Mapping[str, Any] | None = None,
        normalize_advantages: bool = True,
        scale_rewards: bool = True,
        expected_step: int | None = None,
        verbose: bool = False,
        **others: Any,
    ) -> TrainResult:
        """One training step on groups of trajectories; the new step is served when this returns.

        learning_rate: None takes what the literature gives for the model's size, told by the metric
        `loss/learning_rate`. algorithm: a name ("cispo" by default, "gspo", "dapo", ...), a dict of a name
        and parts, or an `art.Algorithm`; `docs/algorithms.md` lists them. loss_fn: "cispo" or "ppo" where no
        algorithm is given. loss_fn_config, epsilon, epsilon_high: the loss's parameters.
        normalize_advantages, scale_rewards: False for either leaves out the division by the group's standard
        deviation. others: `kl_penalty_coef`, `importance_sampling_level` and more, see
        `art.remote.algorithm`. adam_params: betas, eps, weight_decay, max_grad_norm, warmup_steps,
        lr_scheduler_type ("constant", "linear", "cosine"), max_steps of the whole run. expected_step: refuse
        when the model is at another step. verbose: show a progress bar.

        Raises TokenMismatchError for choices without a sample, ConfigurationError for options that would not
        act or do not fit each other, UnbalancedSheetError when rollouts are unaccounted for, DeadlineError,
        and the job's own error.
        """
        chosen.refuse_unknown(others)
        about_the_algorithm = {
            "algorithm": algorithm,
            "loss_fn": loss_fn,
            "loss_fn_config": loss_fn_config,
            "epsilon": epsilon,
            "epsilon_high": epsilon_high,
            "normalize_advantages": normalize_advantages,
            "scale_rewards": scale_rewards,
        }
        request = TrainJobRequest(
            job_id=uuid4().hex,
            groups=train_groups(trajectory_groups),
            algorithm=chosen.algorithm_of({**about_the_algorithm, **others}),
            optimizer=chosen.optimizer_spec(learning_rate, model._internal_config, adam_params),
            expected_step=expected_step,
        )
        with open_progress(f"train {model.name}" if verbose else None, None) as progress:
            info = await self._run(model, request, progress)
        check_sheet(info.sheet, request.groups)
        metrics = {**info.metrics, **sheet_metrics(info.sheet)}
        return self._result(info, metrics)

    async def _run(
        self, model: AnyTrainableModel, request: TrainJobRequest, progress: Progress
    ) -> TrainResultInfo:
        def show(event: JobEvent) -> None:
            if event.type == "progress":
                progress.move_to(event.done, event.total, event.phase)

        await self._connection.call("POST", f"{_path(model)}/train", JobInfo, request)
        return await follow_job(self._connection, request.job_id, show, self._deadlines)

    def _result(self, info: TrainResultInfo, metrics: dict[str, float]) -> TrainResult:
        return TrainResult(info.step, metrics, info.sheet, info.checkpoint_path)

    async def get_step(self, model: AnyTrainableModel) -> int:
        """The newest step of the model on the server."""
        return (await self._connection.call("GET", _path(model), ModelInfo)).step

    async def delete_checkpoints(self, model: AnyTrainableModel, keep_steps: Iterable[int]) -> list[int]:
        """Delete all checkpoints but these and the newest; returns the deleted steps."""
        request = DeleteCheckpointsRequest(keep_steps=sorted(set(keep_steps)))
        path = f"{_path(model)}/delete_checkpoints"
        return (await self._connection.call("POST", path, DeleteCheckpointsReply, request)).deleted

    async def close(self) -> None:
        """Close the connections. The server goes on."""
        await self._connection.close()

    async def __aenter__(self) -> RemoteBackend:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> RemoteBackend:
        return self  # copies of a model share their backend


def _path(model: AnyModel) -> str:
    from urllib.parse import quote

    return f"/art/models/{quote(model.project, safe='')}/{quote(model.name, safe='')}"


def check_sheet(sheet: BalanceSheet, groups: list[TrainGroup]) -> None:
    """Every rollout that was sent has met exactly one fate. Raises UnbalancedSheetError otherwise."""
    sent = sum(len(group.trajectories) + group.failed for group in groups)
    rollouts = sum(row.rollouts for row in sheet.fates.values())
    tokens = sum(row.tokens for row in sheet.fates.values())
    if not sent == sheet.started.rollouts == rollouts or sheet.started.tokens != tokens:
        raise UnbalancedSheetError(
            f"{sent} rollouts were sent; the sheet started {sheet.started.rollouts} and has fates for "
            f"{rollouts}, of {sheet.started.tokens} tokens for {tokens}: {sheet.model_dump_json()}"
        )
