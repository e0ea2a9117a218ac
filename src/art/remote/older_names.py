"""Names under which older programs and their test doubles call a backend. Each has a public twin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from art.errors import NotRegisteredError
from art.remote.connection import ServerConnection
from art.remote.leases import StepLeases, pinned
from art.remote.paths import model_path
from art.types import TrainConfig, TrainResult
from art.wire.models import RegisterRequest, UnloadStepsReply, UnloadStepsRequest

if TYPE_CHECKING:
    from art.backend import AnyModel, AnyTrainableModel
    from art.trajectories import TrajectoryGroup


class OlderNames:
    """Mixin of RemoteBackend."""

    _connection: ServerConnection
    _leases: StepLeases
    _registered: dict[tuple[str, str], RegisterRequest]

    def _model_inference_name(self, model: AnyModel, step: int | None = None) -> str:
        """What to send as `model`: this step's name, else that of the step leased in this context, else the
        one that always means the newest.
        """
        name = model.inference_model_name or model.name
        if any(other == model.name and project != model.project for project, other in self._registered):
            # The bare name was given while it was the only one; now the server refuses it as ambiguous.
            name = f"{model.project}/{model.name}" if name == model.name and model.trainable else name
        step = pinned(model) if step is None else step
        return name if step is None else f"{name}@{step}"

    def adapter_lease(self, model: AnyModel, step: int) -> AbstractAsyncContextManager[None]:
        """`async with backend.adapter_lease(model, 3)`: inside, `model.get_inference_name()` is step 3's, and
        no call of this backend deletes or unloads that step.
        """
        return self._leases.lease(model, step)

    async def prune_model_adapters(self, model: AnyModel, retain_steps: Iterable[int]) -> list[int]:
        """Unload all steps from the engine but these, the newest and those on lease; returns the unloaded.

        Their checkpoints stay: a request that names one loads it again.
        """
        request = UnloadStepsRequest(keep_steps=self._leases.with_held(model, retain_steps))
        reply = await self._connection.call(
            "POST", f"{model_path(model)}/unload_steps", UnloadStepsReply, request
        )
        return reply.unloaded

    async def _get_step(self, model: AnyTrainableModel) -> int:
        return await self.get_step(model)

    async def _delete_checkpoint_files(self, model: AnyTrainableModel, steps_to_keep: Iterable[int]) -> None:
        await self.delete_checkpoints(model, steps_to_keep)

    async def _prepare_backend_for_training(
        self, model: AnyTrainableModel, config: Mapping[str, Any] | None = None
    ) -> tuple[str, str]:
        """Registers the model where that was not done. Returns the base URL of its endpoint and the key."""
        if model.inference_base_url is None or model.inference_api_key is None:
            model._openai_client_config = dict(config) if config else None
            await self.register(model)
        if model.inference_base_url is None or model.inference_api_key is None:
            raise NotRegisteredError(f"model {model.name!r} has no endpoint here: it is not trainable")
        return model.inference_base_url, model.inference_api_key

    async def _train_model(
        self,
        model: AnyTrainableModel,
        trajectory_groups: Iterable[TrajectoryGroup],
        config: TrainConfig | None = None,
        dev_config: Mapping[str, Any] | None = None,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        """The older form of `train`: yields the metrics of the step."""
        chosen = {"learning_rate": TrainConfig().learning_rate, **(config or TrainConfig()).keywords()}
        options = {**chosen, **(dev_config or {}), "verbose": verbose}
        yield (await self.train(model, trajectory_groups, **options)).metrics

    if TYPE_CHECKING:

        async def register(self, model: AnyModel) -> None: ...

        async def get_step(self, model: AnyTrainableModel) -> int: ...

        async def delete_checkpoints(
            self, model: AnyTrainableModel, keep_steps: Iterable[int]
        ) -> list[int]: ...

        async def train(
            self, model: AnyTrainableModel, trajectory_groups: Iterable[TrajectoryGroup], **options: Any
        ) -> TrainResult: ...
