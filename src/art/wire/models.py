"""The conversation about models: register, look up, checkpoints."""

from __future__ import annotations

from pydantic import Field

from art.wire.strict import Strict
from art.wire.training import LoraSpec


class RegisterRequest(Strict):
    """POST /art/models"""

    project: str
    name: str
    base_model: str
    """A hub name, a local folder, or one of the built-in `art/nano-games`, `art/nano-tools`, `art/nano`."""
    lora: LoraSpec | None = LoraSpec()
    """None: no adapter, all weights are trained."""
    seed: int = 0
    """Seeds the adapter's initial weights and the trainer's RNG."""


class ModelInfo(Strict):
    """Reply of POST /art/models and GET /art/models/{project}/{name}"""

    project: str
    name: str
    base_model: str
    inference_name: str
    """What to send as `model` to get the newest step: `name`, or `project/name` when projects share it."""
    step: int
    checkpoints: list[int] = Field(default_factory=list)
    checkpoint_dir: str | None = None


class DeleteCheckpointsRequest(Strict):
    """POST /art/models/{project}/{name}/delete_checkpoints: all but these (and the newest) go."""

    keep_steps: list[int]


class DeleteCheckpointsReply(Strict):
    deleted: list[int]


class ErrorBody(Strict):
    """`{"error": ErrorBody}` is the body of every failed request, in OpenAI's shape."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = Field(None, exclude=True)
