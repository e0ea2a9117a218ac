"""The conversation about models (register, look up, fork, delete), the files of a checkpoint folder, and the
requests that merge one into a whole model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from art.errors import NotFoundError, did_you_mean
from art.wire.records import Strict
from art.wire.training import LoraSpec

RESUME = "resume"
REGISTER_AND_RESUME = f"/art/models?{RESUME}=true"
"""Registers as the program that trains the model: jobs of it that an earlier server left unfinished go on."""


class RegisterRequest(Strict):
    """POST /art/models"""

    project: str
    name: str
    base_model: str
    """A hub name, a local folder, a GGUF file (a path, or `hf://OWNER/REPOSITORY/FILE.gguf`), or one of the
    built-in ones: `art/nano-games`, `art/nano-tools`, `art/nano-mcp`, `art/nano-words`, `art/nano`,
    `art/smollm2`. With `#4bit` or `#8bit` behind it, its linear layers are quantized."""
    lora: LoraSpec | None = LoraSpec()
    """None: no adapter, all weights are trained."""
    seed: int = 0
    """Seeds the adapter's initial weights and the trainer's RNG."""
    max_context: int | None = Field(default=None, ge=1)
    """Tokens of prompt and completion together; None: what the base model allows, which is the most."""
    chat_template: str | None = None
    """A Jinja template that takes the place of the base model's chat format."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """What the chat format is told; a request's own win."""
    special_tokens_in_text: Literal["text", "parse"] = "text"
    """Whether a special token that a message spells is text, or one."""
    tool_format: Literal["auto", "template"] = "auto"
    """What tells of tools where the chat template knows none: a generic format, or nothing."""


class LoadBaseRequest(Strict):
    """POST /art/base_models: serve a base model under its own name, without an adapter."""

    base_model: str


class LoadBaseReply(Strict):
    base_model: str
    """What to send as `model`."""


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
    """On the server's machine; None for tenants."""
    entity: str | None = None
    """Whose it is: the tenant's name; None for the holder of the server's own key."""
    unfinished_jobs: list[str] = Field(default_factory=list)
    """Accepted training jobs that have not ended, in their order (GET only)."""
    phases: list[str] = Field(default_factory=list)
    """What is done so that it is served, in words for people: while it is being started, and in the reply of
    the registration that started it."""


class ModelSummary(ModelInfo):
    """A registered model with what its checkpoints are and hold."""

    rewards: dict[int, float] = Field(default_factory=dict)
    """The mean reward of the rollouts that each step was trained on, by step; of the steps that have a
    checkpoint."""
    size_bytes: int | None = None
    """The size of all checkpoints together, in bytes."""
    updated_at: float | None = None
    """When the newest checkpoint was made, in seconds since 1970; None: there is no checkpoint."""

    @property
    def key(self) -> str:
        """`project/name`."""
        return f"{self.project}/{self.name}"

    @property
    def last_reward(self) -> float | None:
        """Returns the mean reward of the newest step that has one."""
        return self.rewards[max(self.rewards)] if self.rewards else None


class ModelList(Strict):
    """Reply of GET /art/models"""

    models: list[ModelSummary]


def find_summary(text: str, there: Sequence[ModelSummary]) -> ModelSummary:
    """Returns the model that `project/name`, or a `name` of one project alone, names.

    Raises NotFoundError, which lists the models.
    """
    fit = [one for one in there if text == one.key] or [one for one in there if text == one.name]
    if len(fit) == 1:
        return fit[0]
    keys = [one.key for one in fit or there]
    listed = ", ".join(keys) or "none"
    if fit:
        why = f"model {text!r} is in several projects: {listed}"
    else:
        hint = did_you_mean(text, keys)
        why = f"no model {text!r} is registered{hint and f', {hint}'}; registered: {listed}"
    raise NotFoundError(why, status=404, code="model_not_found")


class DeleteCheckpointsRequest(Strict):
    """POST /art/models/{project}/{name}/delete_checkpoints: all but these (and the newest) go."""

    keep_steps: list[int]


class DeleteCheckpointsReply(Strict):
    deleted: list[int]


class UnloadStepsRequest(Strict):
    """POST /art/models/{project}/{name}/unload_steps: the engine forgets all but these (and the newest).

    Their checkpoints stay, and a request that names one loads it again.
    """

    keep_steps: list[int]


class UnloadStepsReply(Strict):
    unloaded: list[int]


class ForkRequest(Strict):
    """POST /art/models/{project}/{name}/fork: begin where another model of this server stands.

    The step keeps its number. Without `step` and `not_after` the newest is taken.
    """

    from_name: str
    from_project: str | None = None
    """None: the project of the model itself."""
    step: int | None = Field(default=None, ge=0)
    """Exactly this one."""
    not_after: int | None = Field(default=None, ge=0)
    """The newest up to this one."""
    weights_only: bool = False
    """The adapter alone: the optimizer begins anew."""


class ForkReply(Strict):
    step: int
    checkpoint_path: str | None
    """On the server's machine; None for tenants."""


class AdoptRequest(Strict):
    """POST /art/models/{project}/{name}/adopt: take over steps that were put into the model's folder
    `.arriving/{step:04d}`.
    """

    steps: list[int]
    set_aside: list[int] = Field(default_factory=list)
    """Steps of the model that give way first. They are kept in hidden folders and are no steps any more."""


class AdoptReply(Strict):
    adopted: list[int]


class DeleteModelReply(Strict):
    """Reply of DELETE /art/models/{project}/{name}"""

    project: str
    name: str


class ErrorBody(Strict):
    """`{"error": ErrorBody}` is the body of every failed request, in OpenAI's shape."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = Field(None, exclude=True)


STEP_FOLDER = re.compile(r"\d{4,}")
"""The folder of a checkpoint."""
SHORTEST_KEY = 8
"""Characters of a server's key."""

STATE_FILE = "trainer_state.json"
MANIFEST_FILE = "manifest.json"
JOB_FILE = "job.json"
ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG_FILE = "adapter_config.json"
TRAINERS_FILES = frozenset({"optimizer.safetensors", "critic.safetensors", "average.safetensors"})
"""The files of a checkpoint that no engine reads, larger than the adapter."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
)
"""The files of a tokenizer; a base model may have only some of them."""
TEMPLATE_FILE = "chat_template.jinja"
"""Its template wins over those in other files."""


class ManifestEntry(Strict):
    """One file of a manifest."""

    sha256: str
    size: int


class Manifest(Strict):
    """Size and digest of each file of a folder, written last: a folder without it is not complete."""

    files: dict[str, ManifestEntry]


def stays_in_folder(name: str) -> bool:
    """Returns whether it is the name of a file right in its folder, and no path, whoever wrote the
    manifest.
    """
    return name not in ("", ".", "..") and Path(name).name == name and "\\" not in name


def manifest_entry(file: Path) -> ManifestEntry:
    """Returns the manifest entry of a file on this machine."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return ManifestEntry(sha256=digest, size=file.stat().st_size)


UI_LINK_ROUTE = "/art/ui-link"


class PagesLink(Strict):
    """Reply of POST /art/ui-link: opens the pages of the runs in one browser, once."""

    path: str
    """The part of the link behind the server's address. It has a token that is no key of the server."""
    expires_in: float
    """Seconds."""


class DrainNodeRequest(Strict):
    """POST /art/cluster/drain: a node of the cluster is to have no workers."""

    node: str
    """Its address, or Ray's id of it."""
    undo: bool = False
    """Use it again."""


class DrainNodeReply(Strict):
    """Reply of POST /art/cluster/drain, when no worker is left there."""

    node: str
    moved: list[str]
    """Names of the workers that serve elsewhere now."""
