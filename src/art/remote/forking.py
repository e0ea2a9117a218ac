"""Beginning a model where another one of the same server stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from art.errors import ConfigurationError
from art.remote.connection import ServerConnection
from art.remote.paths import model_path
from art.wire.models import ForkReply, ForkRequest

if TYPE_CHECKING:
    from art.backend import AnyModel

FORK_S = 1800.0
"""A registered model waits for the end of its running job."""


async def fork_checkpoint(
    connection: ServerConnection,
    model: AnyModel,
    from_model: str,
    *,
    from_project: str | None = None,
    step: int | None = None,
    not_after_step: int | None = None,
) -> ForkReply:
    """Give `model`, which need not be registered yet, a checkpoint of another one, under the same number.

    It resumes exactly: weights, optimizer, RNG. Without `step` (exactly this one) and `not_after_step` (the
    newest up to this one) the newest is taken.

    Raises CheckpointMissingError, StepMissingError, and RequestError when the model has steps of its own.
    """
    if step is not None and not_after_step is not None:
        raise ConfigurationError(f"fork_checkpoint(step={step}, not_after_step={not_after_step}): give one")
    request = ForkRequest(
        from_name=from_model, from_project=from_project, step=step, not_after=not_after_step
    )
    path = f"{model_path(model)}/fork"
    return await connection.call("POST", path, ForkReply, request, deadline_s=FORK_S)


class Forks:
    """Mixin of every backend that speaks to a server."""

    _connection: ServerConnection

    async def fork_checkpoint(
        self,
        model: AnyModel,
        from_model: str,
        *,
        from_project: str | None = None,
        step: int | None = None,
        not_after_step: int | None = None,
    ) -> int:
        """Give `model`, before or right after `register`, a checkpoint of another one, under the same number.

        Without `step` (exactly this one) and `not_after_step` (the newest up to this one) it is the newest.
        Returns the step that the model is at now. Raises CheckpointMissingError, StepMissingError, and
        RequestError when the model has steps of its own.
        """
        reply = await fork_checkpoint(
            self._connection,
            model,
            from_model,
            from_project=from_project,
            step=step,
            not_after_step=not_after_step,
        )
        return reply.step
