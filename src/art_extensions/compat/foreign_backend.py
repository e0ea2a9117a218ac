"""A backend that a program brings, in the style of older releases: private names, no `TrainResult`."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.client.sft.sft_rows import sft_trajectories
from art.errors import ConfigurationError, NotRegisteredError
from art.types import TrainConfig, TrainResult, TrainSFTConfig, kind_of

if TYPE_CHECKING:
    import openai

    from art.backend import AnyModel, AnyTrainableModel, SftExample
    from art.trajectories import TrajectoryGroup


_NO_BACKENDS = (type(None), str, int, float, Path, Mapping, list, tuple, Awaitable)
"""What a program may give in place of a backend by mistake: a name, a folder, a call without `await`."""


class ForeignBackend:
    """Adapts a foreign backend to ART's names. Raises ConfigurationError if it has no equivalent of one."""

    def __init__(self, backend: Any) -> None:
        if isinstance(backend, _NO_BACKENDS):
            raise ConfigurationError(
                f"the backend is {kind_of(backend)}, which is none: give art.LocalBackend(), or "
                "art.RemoteBackend(base_url, api_key)"
            )
        self._backend = backend

    async def register(self, model: AnyModel) -> None:
        """Register, and take over the endpoint that it prepares."""
        if hasattr(self._backend, "register"):
            await self._backend.register(model)
        prepare = getattr(self._backend, "_prepare_backend_for_training", None)
        if model.trainable and prepare is not None:
            trainable: Any = model
            url, key = await prepare(model, trainable._openai_client_config)
            model.inference_base_url, model.inference_api_key = url, key
            namer = getattr(self._backend, "_model_inference_name", None)
            model.inference_model_name = model.name if namer is None else namer(model)

    async def train(
        self, model: AnyTrainableModel, trajectory_groups: Iterable[TrajectoryGroup], **options: Any
    ) -> TrainResult:
        """Trains by `train`, or by consuming `_train_model`; returns the metrics' means."""
        if hasattr(self._backend, "train"):
            result: TrainResult = await self._backend.train(model, trajectory_groups, **options)
            return result
        verbose, config = options.pop("verbose", False), TrainConfig()
        mine = {name: options.pop(name) for name in type(config).model_fields if name in options}
        stream = self._method("_train_model")(model, trajectory_groups, TrainConfig(**mine), options, verbose)
        return TrainResult(metrics=await _means(stream), step=await self.get_step(model))

    async def train_sft(
        self,
        model: AnyTrainableModel,
        trajectories: Iterable[SftExample],
        config: TrainSFTConfig | None = None,
        *,
        verbose: bool = False,
    ) -> TrainResult:
        """Trains by consuming `_train_sft`; returns the metrics' means."""
        given = sft_trajectories(trajectories)
        stream = self._method("_train_sft")(model, given, config or TrainSFTConfig(), {}, verbose)
        return TrainResult(metrics=await _means(stream), step=await self.get_step(model))

    async def get_step(self, model: AnyTrainableModel) -> int:
        step: int = await self._method("_get_step")(model)
        return step

    async def delete_checkpoints(self, model: AnyTrainableModel, keep_steps: Iterable[int]) -> list[int]:
        """Deletes checkpoints. The older interface does not report them, so the list is empty."""
        await self._method("_delete_checkpoint_files")(model, list(keep_steps))
        return []

    def openai_client(self, model: AnyTrainableModel) -> openai.AsyncOpenAI:
        """A plain client of the endpoint. Raises NotRegisteredError where there is none."""
        if model.inference_base_url is None or model.inference_api_key is None:
            raise NotRegisteredError(
                f"{type(self._backend).__name__} prepared no endpoint for {model.name!r}: its "
                "`_prepare_backend_for_training` returns the base URL and the key"
            )
        from art.client.http.openai_client import plain_client

        return plain_client(base_url=model.inference_base_url, api_key=model.inference_api_key)

    async def close(self) -> None:
        if hasattr(self._backend, "close"):
            await self._backend.close()

    def _method(self, name: str) -> Callable[..., Any]:
        public = {"_get_step": "get_step", "_delete_checkpoint_files": "delete_checkpoints"}.get(name)
        found = getattr(self._backend, name, None) or (
            getattr(self._backend, public, None) if public else None
        )
        if found is None:
            raise ConfigurationError(
                f"{type(self._backend).__name__} has no `{name}`; a backend of your own needs it for this "
                "call, or all the names of art.Backend"
            )
        method: Callable[..., Any] = found
        return method


async def _means(stream: AsyncIterator[dict[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    async for metrics in stream:
        for name, value in metrics.items():
            values.setdefault(name, []).append(float(value))
    return {name: statistics.fmean(several) for name, several in values.items()}
