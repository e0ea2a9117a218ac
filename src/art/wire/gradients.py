"""Gradients batch by batch, and the update apart: routes for programs that make a training loop of their own.

    POST /art/models/{project}/{name}/gradients   safetensors (as the trainer's /train) -> safetensors
    POST /art/models/{project}/{name}/step        MakeStepRequest -> MadeStep
    POST /art/models/{project}/{name}/serve       ServeStepRequest -> ServedStep
    POST /art/models/{project}/{name}/release     {} -> Released       forget weights and gradients in memory

A batch's metadata holds a `TrainRequest` with `gradient` "add" or "none". Its `model` is what the address
says, its `update` the number of batches that were added since the last step; 0 begins anew. The reply has
`TOKEN_COLUMNS`, one value for each loss entry, and in the metadata `metrics`.

A gradient is in memory alone. After the trainer was started again, a batch or a step that counts on earlier
batches is refused (409, `gradients_lost`): send those since the last step again, from the first. A step that
was made is on disk, and is made once: asking again with the same id gives the same step.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from art.wire.records import Strict
from art.wire.training import OptimizerSpec

GRADIENTS_LOST = "gradients_lost"
"""The code of the refusal (409): send the batches since the last step again."""


class MakeStepRequest(Strict):
    """One update by the sum of the gradients that are held."""

    job_id: str = Field(min_length=1, max_length=200)
    """The name of the step, which is made once."""
    expected_step: int = Field(ge=0)
    """The step that the update starts from."""
    batches: int = Field(ge=0)
    """How many batches were added since then."""
    optimizer: OptimizerSpec
    rate: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """The learning rate."""
    keep_steps: list[int] | None = None
    """Once it is made, earlier steps but these are deleted, as by `delete_checkpoints`. None: all stay."""


class MadeStep(Strict):
    step: int
    metrics: dict[str, float]
    checkpoint_path: str | None = None
    """On the server's machine; None for tenants."""


class ServeStepRequest(Strict):
    """Serve a step that was made, after the check that engine and trainer compute the same."""

    step: int = Field(ge=0)


class Released(Strict):
    project: str
    name: str


class ServedStep(Strict):
    step: int
    model: str
    """What to send as `model` to sample from this step."""
