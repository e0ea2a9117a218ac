"""What a backend is, and what backends and the run's record need of a model.

`art.model` stands above this: a backend never imports the models, it is given them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from art.types import TrainResult, TrainSFTConfig

if TYPE_CHECKING:
    import openai

    from art.trajectories import Trajectory, TrajectoryGroup


@runtime_checkable
class AnyModel(Protocol):
    """A model as backends see it, prompted or trained: `art.Model` and its subclasses."""

    name: str
    project: str
    entity: str | None
    id: str | None
    run_id: str | None
    run_name: str | None
    config: Any
    trainable: bool
    inference_api_key: str | None
    inference_base_url: str | None
    inference_model_name: str | None
    base_path: str
    report_metrics: list[str] | None

    _backend: Any

    def model_dump(self, *, exclude: Any = ...) -> dict[str, Any]: ...

    def get_inference_name(self, step: int | None = None) -> str: ...

    def _folder(self) -> Path: ...


@runtime_checkable
class AnyTrainableModel(AnyModel, Protocol):
    """A model that learns, as backends see it: `art.TrainableModel` and its subclasses."""

    base_model: str

    _internal_config: Mapping[str, Any] | None
    _openai_client_config: dict[str, Any] | None

    def backend(self) -> Any: ...

    async def get_step(self) -> int: ...

    async def train_sft(
        self,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        _config: Mapping[str, Any] | None = None,
        verbose: bool = False,
    ) -> TrainResult: ...


class Backend(Protocol):
    """Where models are served and trained: on this machine, on another, at a service.

    The backends of this package answer to the names of older releases too:
    `_model_inference_name(model, step)`, `_get_step(model)`,
    `_delete_checkpoint_files(model, steps_to_keep)`, `_prepare_backend_for_training(model, config)`, and
    `_train_model` and `_train_sft`, which yield dicts of metrics. A backend of a program's own
    may have only those: `model.register` takes it as it is (`art.foreign_backend`).
    """

    async def register(self, model: AnyModel) -> None:
        """Make the model known: afterwards it can be sampled and, if trainable, trained."""

    async def train(
        self, model: AnyTrainableModel, trajectory_groups: Iterable[TrajectoryGroup], **options: Any
    ) -> TrainResult:
        """One training step. The new step is served when this returns."""

    async def train_sft(
        self,
        model: AnyTrainableModel,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        *,
        verbose: bool = False,
    ) -> TrainResult:
        """One step of supervised training on what assistants say. The new step is served when this
        returns.
        """

    async def get_step(self, model: AnyTrainableModel) -> int:
        """The newest step: the number of completed training steps."""

    async def delete_checkpoints(self, model: AnyTrainableModel, keep_steps: Iterable[int]) -> list[int]:
        """Delete all checkpoints but these and the newest; returns the deleted steps."""

    def openai_client(self, model: AnyTrainableModel) -> openai.AsyncOpenAI:
        """A client for the model's completions."""

    async def close(self) -> None:
        """Let go of everything the backend holds."""
