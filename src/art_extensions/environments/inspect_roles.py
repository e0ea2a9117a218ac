"""The further models of a task of inspect-ai, such as its simulated user or its grader: who plays them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from art.environments.adapters.environment import REQUEST_S, EnvironmentThread, end_within, load_object
from art.errors import ConfigurationError

if TYPE_CHECKING:
    from art.model import Model

Reply = str | Mapping[str, Any]
RolePlayer = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], Any]
"""A role that is a function, or a coroutine: messages and tools, in OpenAI's form -> its text, or a message
with `tool_calls`.
"""
RETRIES = 3
"""The number of tries again of a request to a role's model."""


def find_player(name: str, role: str, given: Model | str | RolePlayer) -> Model | RolePlayer:
    """Returns who plays a role.

    given: an `art.Model`, a function, or "module:function". Raises ConfigurationError, which names the
    environment and the role, for anything else.
    """
    player: Any = load_object(role, given) if isinstance(given, str) else given
    if not callable(player) and not hasattr(player, "inference_base_url"):
        raise ConfigurationError(
            f"environment {name!r}: {role}={given!r} is unknown: use an art.Model or 'module:function'"
        )
    found: Model | RolePlayer = player
    return found


def make_role(role: str, player: Model | RolePlayer) -> Any:
    """Returns a model of inspect that plays a role in a rollout.

    Raises ConfigurationError for a model without an endpoint.
    """
    from inspect_ai.model import GenerateConfig, get_model

    if callable(player):
        return get_model("mockllm/role", memoize=False, custom_outputs=_replies(role, player))
    if player.inference_base_url is None:
        raise ConfigurationError(f"the {role} {player.name!r} has no endpoint: register it first")
    return get_model(
        f"openai-api/art/{player.get_inference_name()}",
        base_url=player.inference_base_url,
        api_key=player.inference_api_key,
        memoize=False,
        config=GenerateConfig(max_retries=RETRIES, attempt_timeout=int(REQUEST_S)),
    )


def _replies(role: str, player: RolePlayer) -> Callable[..., Any]:
    """Returns the function as inspect calls it. It runs in a thread, so that other rollouts go on."""

    async def reply(input: Any, tools: Any, tool_choice: Any, config: Any) -> Any:
        from inspect_ai.model import (
            ChatCompletionChoice,
            ModelOutput,
            ModelUsage,
            messages_from_openai,
            messages_to_openai,
        )

        messages = await messages_to_openai(input)
        offered = [one.model_dump(exclude_none=True) for one in tools]
        # A thread of a pool would hold up the end of the process where the function does not return.
        with EnvironmentThread(role, deadline_s=REQUEST_S) as thread:
            answer = await thread.call("its function", player, messages, offered)
        if inspect.isawaitable(answer):
            answer = await end_within(REQUEST_S, f"the {role}'s function", answer)
        message: Any = {"role": "assistant", "content": answer} if isinstance(answer, str) else {**answer}
        (converted,) = await messages_from_openai([message])
        choice = ChatCompletionChoice(
            message=converted,
            stop_reason="tool_calls" if message.get("tool_calls") else "stop",
        )
        # Without a usage it would count tokens with a tokenizer that it downloads.
        return ModelOutput(model="role", choices=[choice], usage=ModelUsage())

    return reply
