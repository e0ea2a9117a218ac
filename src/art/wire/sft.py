"""The conversation about supervised training.

    POST /art/models/{project}/{name}/train_sft    SftJobRequest -> JobInfo      idempotent by `job_id`

The job is then followed like any other (`art.wire.jobs`). The server renders the messages; what is trained is
what the assistant says in them, token by token. All batches of a job make one step.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from art.wire.strict import Strict
from art.wire.training import OptimizerSpec

LARGEST_SFT_BODY = 256 * 1024 * 1024
"""Bytes of a request."""

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SftConversation(Strict):
    """Messages and tools as OpenAI's chat API spells them."""

    name: str
    """The client's name for it; messages of errors use it."""
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    samples: dict[int, str] = Field(default_factory=dict)
    """Samples that messages say they are, by index. One that is just that, of a model on the same base, is
    trained as it was sampled, to the id; all others are rendered."""


class SftJobRequest(Strict):
    job_id: str
    """Made by the client, so that a lost reply can be asked for again."""
    conversations: list[SftConversation]
    batches: list[list[int]] = Field(min_length=1)
    """Indices into `conversations`, one list an update. An index may come in several batches."""
    learning_rates: list[Rate]
    """One a batch."""
    optimizer: OptimizerSpec
    """Its rate and its schedule are not used: each batch has a rate of its own."""
    expected_step: int | None = None
    """Refuse when the model is at another step."""

    @model_validator(mode="after")
    def _batches_fit(self) -> SftJobRequest:
        if len(self.batches) != len(self.learning_rates):
            raise ValueError(
                f"{len(self.learning_rates)} learning rates for {len(self.batches)} batches: give one a batch"
            )
        count = len(self.conversations)
        for number, batch in enumerate(self.batches):
            if not batch:
                raise ValueError(f"batch {number} is empty")
            for index in batch:
                if not 0 <= index < count:
                    raise ValueError(f"batch {number} names conversation {index} of {count}")
        return self
