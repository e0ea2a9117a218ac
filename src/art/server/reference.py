"""The other policy on the same base that a step needs: the reference of a KL term, or the teacher."""

from __future__ import annotations

from art.errors import RequestError
from art.server.checkpoints import Checkpoints
from art.wire.algorithm import Algorithm


def reference_folder(algorithm: Algorithm, checkpoints: Checkpoints) -> str | None:
    """Folder of the reference's or teacher's checkpoint; None: the base without adapter, or none is needed.

    Raises RequestError for a step that has no checkpoint, and where KL term and teacher are different
    policies: the trainer scores one of them.
    """
    wanted = {
        name: part.step
        for name, part, kind in (
            ("kl", algorithm.kl, algorithm.kl and algorithm.kl.reference),
            ("teacher", algorithm.teacher, algorithm.teacher and algorithm.teacher.kind),
        )
        if part is not None and kind in ("base", "step")
    }
    if len(set(wanted.values())) > 1:
        steps = ", ".join(f"{name}: {_named(step)}" for name, step in wanted.items())
        raise RequestError(
            f"the KL term and the teacher refer to different policies ({steps}); choose one for both",
            status=400,
            code="two_references",
            param="algorithm",
        )
    for name, step in wanted.items():
        if step is None:
            continue
        known = checkpoints.steps()
        if step not in known:
            raise RequestError(
                f"algorithm.{name}.step = {step!r}: the model has no checkpoint of that step; its steps: "
                f"{known}",
                status=404,
                code="reference_not_found",
                param=f"algorithm.{name}.step",
            )
        return str(checkpoints.path(step))
    return None


def _named(step: int | None) -> str:
    return "the base model" if step is None else f"step {step}"
