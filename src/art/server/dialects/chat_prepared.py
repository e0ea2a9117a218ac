"""A request that is ready to be sampled: whose it is, its prompt, how its reply is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from art.engine.protocol import Constraint
from art.errors import RequestError
from art.rendering.chat import Parsed
from art.server.dialects.chat_reply import Completion, message_of
from art.server.dialects.chat_request import ChatRequest
from art.server.ledger.stitching import Stitched
from art.server.models.served import Target
from art.server.tenants.tenancy import Tenant, inside, outside

_BLAMED = {
    "invalid_logit_bias": "logit_bias",
    "invalid_token_id": "prompt",
    "invalid_min_tokens": "min_tokens",
}
"""The field of what only an engine can refuse, by its code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A request whose prompt is known."""

    request: ChatRequest
    target: Target
    stitched: Stitched
    tenant: Tenant
    rollout_id: str | None
    max_tokens: int
    created_at: float
    request_id: str
    """What the choices of a rollout's request have in common."""
    constraint: Constraint | None = None
    """In the words of the model's chat format."""

    @property
    def affinity(self) -> str | None:
        """The rollout; a tenant's is apart from another's of the same name."""
        return None if self.rollout_id is None else f"{self.tenant or ''}~{self.rollout_id}"

    @property
    def owner(self) -> str:
        """Whose turn it uses up: the model of a project, or the base model as each tenant asks it."""
        target = self.target
        if target.project is None:
            return inside(self.tenant, target.name)
        return f"{target.project}/{target.name}"

    @property
    def fingerprint(self) -> str:
        """The exact weights that answer: the model and its step."""
        target = self.target
        if target.project is None:
            return target.name
        return f"{outside(self.tenant, target.project)}/{target.name}@{target.step}"

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Those that end a turn, unless that is to be ignored, and those that the request names."""
        if self.request.ignore_eos:
            return self.request.stop_token_ids
        return tuple(dict.fromkeys((*self.target.renderer.stop_token_ids, *self.request.stop_token_ids)))

    @property
    def calls_held(self) -> bool:
        """The reply is calls and nothing else, and no stop string can end it within one."""
        request = self.request
        return request.tool_choice.mode == "required" and self.constraint is not None and not request.stop

    def blamed(self, error: RequestError) -> RequestError:
        """What an engine refuses of a request, with the field that asked for it."""
        field = _BLAMED.get(error.code or "")
        if error.code == "invalid_constraint":
            field = self.request.constrained_by or "tools"
        if field is None:
            return error
        return RequestError(str(error), status=error.status, code=error.code, param=field)

    def parse(self, token_ids: Sequence[int], *, partial: bool = False) -> Parsed:
        """The message that ids of a completion spell; `partial`: they go on."""
        tools = self.request.tools if self.request.read_calls else None
        return self.target.renderer.parse(
            token_ids, self.stitched.prompt_ids, tools, partial=partial, held=self.calls_held
        )

    def message(self, completion: Completion) -> dict[str, Any]:
        """The assistant's message that a whole completion spells."""
        kept, least = None, self.request.min_tokens
        if least and completion.stop_string is not None:
            kept = self.parse(completion.token_ids[:least], partial=True)
        return message_of(
            completion, self.parse(completion.token_ids), kept, keep_stop=self.request.keep_stop
        )
