"""The methods that programs of older releases, and their test doubles, call on a backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from art.client.sft.sft_request import refuse_sft_options
from art.errors import NotRegisteredError, StepMissingError
from art.types import TrainConfig

if TYPE_CHECKING:
    from art.backend import AnyTrainableModel, SftExample
    from art.client.backends.remote_backend import RemoteBackend
    from art.trajectories import TrajectoryGroup
    from art.types import TrainSFTConfig


async def get_step(self: RemoteBackend, model: AnyTrainableModel) -> int:
    return await self.get_step(model)


async def delete_checkpoint_files(
    self: RemoteBackend, model: AnyTrainableModel, steps_to_keep: Iterable[int]
) -> None:
    await self.delete_checkpoints(model, steps_to_keep)


@asynccontextmanager
async def exact_adapter_lease(
    self: RemoteBackend, model: AnyTrainableModel, step: int
) -> AsyncIterator[None]:
    """Pins a step inside, in this task and those it starts; a request loads it.

    Raises StepMissingError where it has no checkpoint.
    """
    async with self.adapter_lease(model, step):  # before the question: nobody deletes it in between
        if step not in (known := await self.checkpoint_steps(model)):
            raise StepMissingError(
                f"exact_adapter_lease({model.name!r}, {step}): the step has no checkpoint; there are "
                f"{', '.join(map(str, known)) or 'none'}"
            )
        yield


async def prepare_backend_for_training(
    self: RemoteBackend, model: AnyTrainableModel, config: Mapping[str, Any] | None = None
) -> tuple[str, str]:
    """Registers the model where that was not done. Returns the base URL of its endpoint and the key."""
    if model.inference_base_url is None or model.inference_api_key is None:
        model._openai_client_config = dict(config) if config else None
        await self.register(model)
    if model.inference_base_url is None or model.inference_api_key is None:
        raise NotRegisteredError(f"model {model.name!r} has no endpoint here: it is not trainable")
    return model.inference_base_url, model.inference_api_key


async def train_model(
    self: RemoteBackend,
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


async def train_sft(
    self: RemoteBackend,
    model: AnyTrainableModel,
    trajectories: Iterable[SftExample],
    config: TrainSFTConfig | None = None,
    dev_config: Mapping[str, Any] | None = None,
    verbose: bool = False,
) -> AsyncIterator[dict[str, float]]:
    """The older form of `train_sft`: yields the metrics of the step, if one was made."""
    refuse_sft_options(dev_config)
    result = await self.train_sft(model, trajectories, config, verbose=verbose)
    if result.metrics:
        yield result.metrics
