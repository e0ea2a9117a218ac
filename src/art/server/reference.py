"""The other step of the model that a training step needs: the reference of a KL term, or the teacher."""

from __future__ import annotations

from art.errors import RequestError
from art.server.checkpoints import Checkpoints
from art.wire.algorithm import Algorithm


def reference_folder(algorithm: Algorithm, checkpoints: Checkpoints) -> str | None:
    """Folder of the reference's or teacher's checkpoint; None: the base without adapter, or none is needed.

    Of KL term and teacher at most one is another policy on the base (`check_algorithm` sees to it). Raises
    RequestError for a step that has no checkpoint.
    """
    if algorithm.kl is not None and algorithm.kl.reference == "step":
        part, step = "kl", algorithm.kl.step
    elif algorithm.teacher is not None and algorithm.teacher.kind == "step":
        part, step = "teacher", algorithm.teacher.step
    else:
        return None
    known = checkpoints.steps()
    if step is None or step not in known:
        raise RequestError(
            f"algorithm.{part}.step = {step!r}: the model has no checkpoint of that step; its steps: {known}",
            status=404,
            code="reference_not_found",
            param=f"algorithm.{part}.step",
        )
    return str(checkpoints.path(step))
