"""The face that every backend shows to a model."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from art.types import TrainResult, TrainSFTConfig

if TYPE_CHECKING:
    import openai

    from art.model import Model, TrainableModel
    from art.trajectories import Trajectory, TrajectoryGroup

    AnyModel = Model[Any, Any]
    AnyTrainableModel = TrainableModel[Any, Any]


class Backend(Protocol):
    """Where models are served and trained: on this machine, on another, at a service.

    The backends of this package answer to the names of older releases too (`art.remote.older_names`):
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


def __getattr__(name: str) -> Any:
    """`AnyModel` and `AnyTrainableModel` are annotations; at run time they are the models' classes."""
    if name not in ("AnyModel", "AnyTrainableModel"):
        raise AttributeError(f"module 'art.backend' has no attribute {name!r}")
    return getattr(import_module("art.model"), name.removeprefix("Any"))
