"""The other policy that a job compares with: a reference or a teacher on the same base is a LoRA's folder."""

from __future__ import annotations

from pathlib import Path

from art.errors import RequestError
from art.server.checkpoints.checkpoints import Checkpoints
from art.wire.algorithm import Algorithm
from art.wire.models import ADAPTER_CONFIG_FILE

REFERENCES = Path("server") / "references"
"""Below the data folder: adapters from elsewhere, put there by whoever may write to it."""


def reference_folder(algorithm: Algorithm, checkpoints: Checkpoints) -> str | None:
    """Folder of the reference's or teacher's checkpoint; None: the base without adapter, or none is needed.

    Of KL term and teacher at most one is another policy on the base (`check_algorithm` sees to it); the
    trainer has an average itself. Raises RequestError for a step that has no checkpoint, and for a folder
    that may not be read or is no adapter.
    """
    if algorithm.kl is not None and algorithm.kl.path is not None:
        return _adapter(algorithm.kl.path, checkpoints)
    known = checkpoints.steps()
    if algorithm.kl is not None and algorithm.kl.reference == "step":
        part, step, lag, every = "kl", algorithm.kl.step, algorithm.kl.lag, algorithm.kl.every
        if lag is not None and known:
            step = max(0, known[-1] - lag)
        elif every is not None and known:
            step = known[-1] - known[-1] % every
    elif algorithm.teacher is not None and algorithm.teacher.kind == "step":
        part, step = "teacher", algorithm.teacher.step
    else:
        return None
    if step is None or step not in known:
        raise RequestError(
            f"algorithm.{part}.step = {step!r}: the model has no checkpoint of that step; its steps: {known}",
            status=404,
            code="reference_not_found",
            param=f"algorithm.{part}.step",
        )
    return str(checkpoints.path(step))


def _adapter(path: str, checkpoints: Checkpoints) -> str:
    """A LoRA's folder, below the model's project or among the references that were put beside the server."""
    project = checkpoints.folder.parents[2]
    roots = (project, project.parent / REFERENCES)
    folder = Path(path).resolve()
    if not any(folder.is_relative_to(root.resolve()) for root in roots):
        raise RequestError(
            f"algorithm.kl.path = {path!r}: a reference adapter lies below its project's folder; use the "
            "checkpoint_path of one of its steps",
            status=400,
            code="reference_not_allowed",
            param="algorithm.kl.path",
        )
    if not (folder / ADAPTER_CONFIG_FILE).is_file():
        raise RequestError(
            f"algorithm.kl.path = {path!r} is no folder of a LoRA: it has no {ADAPTER_CONFIG_FILE}",
            status=404,
            code="reference_not_found",
            param="algorithm.kl.path",
        )
    return str(folder)
