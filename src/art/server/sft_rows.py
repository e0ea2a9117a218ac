"""A conversation -> the rows that training is built from, one for each thing that the assistant says.

Each prompt extends the prompt and the reply before it, as it does when a rollout is sampled. So the turns of
a conversation, and conversations that begin alike, share their tokens in the batch's tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from art.errors import RequestError
from art.rendering.chat import ChatRenderer, Message, Tool
from art.samples.types import RolloutRow, SampleRow
from art.server.dialects.chat_messages import read_messages, read_tools
from art.server.stitching import BRIDGE_REFUSED, NO_NEW_MESSAGE
from art.wire.sft import SftConversation


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedTurn:
    """What the assistant says in one message: ids behind ids."""

    index: int
    """Of the message."""
    prompt_ids: list[int]
    completion_ids: list[int]
    fork_reason: str | None = None
    """Why the prompt does not extend the turn before, or None."""


def conversation_row(renderer: ChatRenderer, conversation: SftConversation, name: str) -> RolloutRow:
    """The conversation under a name that is unique in its batch; every assistant message is a sample.

    The logprobs are 0: nobody sampled these tokens. Raises RequestError that names the conversation.
    """
    try:
        messages = read_messages(conversation.messages)
        tools = read_tools(conversation.tools) if conversation.tools else None
        turns = list(render_turns(renderer, messages, tools))
    except RequestError as error:
        raise _about(conversation.name, error) from error
    if not turns:
        raise RequestError(
            f"conversation {conversation.name!r} has no assistant message: there is nothing to train",
            status=400,
            code="nothing_to_train",
            param="conversations",
        )
    samples = [
        SampleRow(
            sample_id=f"{name}.{turn.index}",
            prompt_ids=turn.prompt_ids,
            completion_ids=turn.completion_ids,
            completion_logprobs=[0.0] * len(turn.completion_ids),
            fork_reason=turn.fork_reason,
        )
        for turn in turns
    ]
    return RolloutRow(rollout=name, reward=0.0, samples=samples)


def render_turns(
    renderer: ChatRenderer, messages: Sequence[Message], tools: Sequence[Tool] | None
) -> Iterator[RenderedTurn]:
    """The assistant's turns in their order. Raises RequestError when the format cannot express them."""
    before: RenderedTurn | None = None
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt, reason = _prompt(renderer, messages, index, tools, before)
        before = RenderedTurn(
            index=index,
            prompt_ids=prompt,
            completion_ids=renderer.reply(prompt, message, tools),
            fork_reason=reason,
        )
        yield before


def _prompt(
    renderer: ChatRenderer,
    messages: Sequence[Message],
    index: int,
    tools: Sequence[Tool] | None,
    before: RenderedTurn | None,
) -> tuple[list[int], str | None]:
    """The ids before an assistant's message, and the reason where they do not extend the turn before."""
    if index == 0:
        return renderer.first_prompt(messages[0], tools), None
    if before is None:
        return renderer.render(messages[:index], tools), None
    new_messages = messages[before.index + 1 : index]
    if not new_messages:
        return renderer.render(messages[:index], tools), NO_NEW_MESSAGE
    ids = renderer.bridge(before.prompt_ids, before.completion_ids, new_messages, tools)
    if ids is not None:
        return ids, None
    return renderer.render(messages[:index], tools), BRIDGE_REFUSED


def _about(name: str, error: RequestError) -> RequestError:
    message = f"conversation {name!r}: {error}"
    return RequestError(message, status=error.status, code=error.code, param=error.param)
