"""The conversation about scoped rollouts: programs that know nothing of ART, given an address and a key.

With it, the names that travel beside an OpenAI request or reply.
"""

from __future__ import annotations

from typing import Any, TypedDict

from pydantic import Field

from art.wire.records import Strict

ROLLOUT_HEADER = "x-art-rollout"
"""Request header: the rollout a completion belongs to. Without it conversations are matched by their text."""
RAW_ROLLOUT_HEADER = ROLLOUT_HEADER.encode()
"""The same as a server reads it."""

SAMPLE_FIELD = "sample_id"
STEP_FIELD = "step"
TOKENS_FIELD = "completion_tokens"
"""Extra fields of each `Choice` of a reply; the tokens only of a choice that is complete."""
MALFORMED_FIELD = "malformed_calls"
"""Extra field of a complete choice: tool calls that cannot be read and stayed in the content, if any."""
CALL_NOTE = "_completion_call"
"""Attribute that the client gives each `Choice`: an `ObservedCompletion`. Copies and pickles have it; dumps,
comparisons and requests do not."""


class ObservedCompletion(TypedDict, total=False):
    """The facts of a completion that only the program knows that asked. Times are Unix seconds."""

    started_at: float
    ended_at: float
    model: str
    """The name that the reply has."""
    prompt_tokens: int
    completion_tokens: int
    """The number of sampled tokens of a reply with one choice."""
    tools: dict[str, tuple[float, float]]
    """The id of a tool call -> when it began and ended."""


ANY_NAME = "*"
"""The alias by which every name that is asked for stands for the model."""

ROLLOUT_ID = r"^\.*[A-Za-z0-9_-][A-Za-z0-9._-]*$"


class OpenRolloutRequest(Strict):
    """POST /art/rollouts: an address and a key of one rollout. Asking twice with the same id is safe."""

    project: str
    name: str
    rollout_id: str | None = Field(default=None, min_length=1, max_length=128, pattern=ROLLOUT_ID)
    """None: the server makes one. Not only dots: clients take such steps out of an address."""
    aliases: list[str] = Field(default_factory=list, max_length=100)
    """Names that programs have written down (`gpt-4o-mini`) and that stand for the model here."""
    allow_base: bool = False
    """Whether the base model may be asked for by its own name."""
    step: int | None = Field(default=None, ge=0)
    """The step that answers throughout; None: the newest at each request."""
    pinned: bool = False
    """The step that is the newest now answers throughout."""
    expires_s: float = Field(default=86_400.0, gt=0, le=30 * 86_400.0)
    """Seconds until the server closes it by itself."""


class RolloutScope(Strict):
    """Reply of POST /art/rollouts."""

    rollout_id: str
    path: str
    """`/r/{rollout_id}`: with the server's address in front, and `/v1` behind it, OpenAI's base URL."""
    api_key: str = Field(repr=False)
    """Opens the completions of this rollout and nothing else, at this path or at the plain one."""
    model: str
    """A name of the model that is always understood inside."""
    expires_at: float
    """Unix seconds."""


class ExchangeChoice(Strict):
    """One reply of an exchange."""

    sample_id: str
    index: int
    step: int | None
    message: dict[str, Any]
    """The message in the shape of OpenAI's chat completions."""
    finish_reason: str
    completion_tokens: int


class Exchange(Strict):
    """One request and its answer.

    Its messages are the first `shared` messages of exchange `extends`, then `messages`.
    """

    request_id: str
    model: str
    """The name that was asked for."""
    extends: str | None
    """An earlier exchange of the list, by its `request_id`."""
    shared: int
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    choices: list[ExchangeChoice]
    parent_id: str | None = None
    """The sample whose ids the prompt extends."""
    fork_reason: str | None
    """Why the prompt does not extend the ids of an earlier sample, where the conversation does."""
    delivered: bool = False
    """Whether the reply was sent to its end, to a client that was still there."""
    created_at: float
    """When the request was read, in Unix seconds."""
    ended_at: float | None = None
    """When its first choice was complete; None for one of an earlier release, as for the tokens."""
    prompt_tokens: int | None = None


class RolloutExchanges(Strict):
    """GET /art/rollouts/{rollout_id}, and the reply of POST .../close."""

    rollout_id: str
    project: str
    name: str
    closed: bool
    exchanges: list[Exchange]
    """The exchanges in the order in which they were asked."""
    forks: dict[str, int] = Field(default_factory=dict)
    """Prompts that could not extend earlier ids, by reason."""
    unlisted_samples: int = 0
    """Samples of the rollout that are of another model (the base model), so no part of its conversations."""


class RolloutForgotten(Strict):
    """Reply of DELETE /art/rollouts/{rollout_id}: closed, and its texts are gone. Its samples stay."""

    rollout_id: str
