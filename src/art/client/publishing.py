"""Checkpoints for other programs: `art.export_model`, and its result. An extension does the work.

    publisher.export    a function with the parameters of `export_model`, which returns `Exported`
    publisher.deploy    a coroutine function for `LocalBackend`, which returns a `LoRADeploymentJob`: (model,
                        folder, step, provider, *, s3_bucket, prefix, wait_for_completion, verbose)

The types of the results are here, because programs and `LocalBackend` name them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from art.extensions import PUBLISHER, load_extension

if TYPE_CHECKING:
    from art.backend import AnyModel

Format = Literal["merged", "peft", "gguf"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The result of `export_model`."""

    model: str
    """`project/name`."""
    step: int
    format: Format
    folder: Path
    files: tuple[str, ...]
    base_model: str
    dtype: str | None = None
    """The dtype of merged weights."""
    url: str | None = None
    """Where it was pushed to."""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values."""
        return {**vars(self), "folder": str(self.folder), "files": list(self.files)}


class LoRADeploymentJob(BaseModel):
    """The state of a deployment for older programs: `status` is Queued, Running, Complete or Failed."""

    status: str
    job_id: str
    model_name: str
    failure_reason: str | None = None


def export_model(
    model: str | AnyModel,
    to: str | Path,
    *,
    format: Format = "merged",
    step: int | None = None,
    best: str | None = None,
    data_dir: str | Path | None = None,
    dtype: Dtype = "auto",
    license: str | None = None,
    task: str | None = None,
    converter: str | Path | None = None,
    push: str | None = None,
    private: bool = True,
) -> Exported:
    """Writes a checkpoint into the new folder `to`, with a model card. It needs no server. Blocking.

    model: "project/name", "project/name@step", or a model of your program. step, best: the checkpoint, by
    number or as the one with the highest mean of a metric in `history.jsonl`; by default the newest.
    data_dir: `.art`, or the model's `base_path`. dtype: of merged weights; "auto" is float32 below 500
    million parameters and the base's own above. license, task: for the card; the license is by default
    the base's, if known, and the task what the model was trained to do, in your words.
    converter: llama.cpp's `convert_hf_to_gguf.py`, where it is not on the PATH. push: "hf://owner/name", with
    the token of `HF_TOKEN` or of `hf auth login`; private: whether a repository that push makes is private.

    Raises ConfigurationError, MissingExtraError, CheckpointError (also for a step that is not here),
    StorageError (the hub refused), DeadlineError.
    """
    exported: Exported = load_extension(PUBLISHER, "export")(
        model,
        to,
        format=format,
        step=step,
        best=best,
        data_dir=data_dir,
        dtype=dtype,
        license=license,
        task=task,
        converter=converter,
        push=push,
        private=private,
    )
    return exported
