"""A conversation -> the rows that training is built from, one for each thing that the assistant says.

Each prompt extends the prompt and the reply before it, as it does when a rollout is sampled. So the turns of
a conversation, and conversations that begin alike, share their tokens in the batch's tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from art.errors import RequestError
from art.rendering.chat import ChatRenderer, Message, Tool
from art.samples.types import RolloutRow, SampleRow
from art.server.dialects.chat_messages import read_messages, read_tools
from art.server.ledger.conversation import Conversation, tools_key
from art.server.ledger.schema import SampleRecord
from art.server.ledger.stitching import BRIDGE_REFUSED, NO_NEW_MESSAGE
from art.wire.sft import SftConversation


def conversation_row(
    renderer: ChatRenderer,
    conversation: SftConversation,
    name: str,
    sampled: Mapping[int, SampleRow] = MappingProxyType({}),
) -> RolloutRow:
    """The conversation under a name that is unique in its batch; every assistant message is a sample.

    `sampled`: see `exact_rows`. Raises RequestError that names the conversation.
    """
    samples = assistant_rows(
        renderer,
        name,
        conversation.messages,
        conversation.tools,
        about=f"conversation {conversation.name!r}",
        sampled=sampled,
    )
    if not samples:
        raise RequestError(
            f"conversation {conversation.name!r} has no assistant message to train (of weight 1, "
            "the default)",
            status=400,
            code="nothing_to_train",
            param="conversations",
        )
    return RolloutRow(rollout=name, reward=0.0, samples=samples)


def exact_rows(
    conversation: SftConversation, name: str, records: Mapping[str, SampleRecord], speaker: str
) -> dict[int, SampleRow]:
    """Ids as they were sampled, of messages that are word for word a sample of the same conversation.

    `speaker`: what keys of conversations with the model begin with (`Conversation`): samples of another base,
    or of another chat format, have other keys.
    """
    if not conversation.samples:
        return {}
    try:
        messages = read_messages(conversation.messages)
        offered = tools_key(read_tools(conversation.tools) if conversation.tools else None)
    except RequestError:
        return {}  # rendering it will say what is wrong, and with which conversation
    keys = {turn.index: turn.key for turn in Conversation(speaker, messages).turns}
    rows = {}
    for index, sample in conversation.samples.items():
        record = records.get(sample)
        if record is None or (record.turn_key, record.tools_key) != (keys.get(index), offered):
            continue
        rows[index] = SampleRow(
            sample_id=f"{name}.{index}",
            prompt_ids=record.prompt_ids,
            completion_ids=record.completion_ids,
            completion_logprobs=(),
            given=True,  # whatever drew them, they are learned like any example
        )
    return rows


def cut_turns(renderer: ChatRenderer, conversation: SftConversation, row: RolloutRow) -> int:
    """How many of its turns lost a part, because the chat format has no place for it.

    Some formats know no reasoning, some no text beside a call.
    """
    tools, cut = read_tools(conversation.tools) if conversation.tools else None, 0
    for sample in row.samples:
        message = conversation.messages[int(sample.sample_id.rpartition(".")[2])]
        thought, calls = message.get("reasoning_content"), message.get("tool_calls")
        if not thought and not (calls and message.get("content")):
            continue
        read = renderer.parse(sample.completion_ids, sample.prompt_ids, tools)
        cut += bool(thought and not read.reasoning) or bool(calls and not read.content)
    return cut


def assistant_rows(
    renderer: ChatRenderer,
    name: str,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    *,
    about: str,
    sampled: Mapping[int, SampleRow] = MappingProxyType({}),
) -> list[SampleRow]:
    """What the assistant says, message by message. `sampled`: the rows of messages that were sampled.

    Rows of the others are called `name.index` and are `given`. Raises RequestError that says `about` what.
    """
    try:
        read, offered = read_messages(messages), read_tools(tools) if tools else None
        rows = _rows(renderer, name, read, offered, sampled)
        return [row for index, row in rows if _is_trained(messages[index])]
    except RequestError as error:
        message = f"{about}: {error}"
        raise RequestError(message, status=error.status, code=error.code, param=error.param) from error


def _rows(
    renderer: ChatRenderer,
    name: str,
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    sampled: Mapping[int, SampleRow],
) -> Iterator[tuple[int, SampleRow]]:
    before: tuple[int, SampleRow] | None = None
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        row = sampled.get(index)
        if row is None:
            prompt, reason = _prompt(renderer, messages, index, tools, before)
            row = SampleRow(
                sample_id=f"{name}.{index}",
                prompt_ids=prompt,
                completion_ids=renderer.reply(prompt, message, tools),
                completion_logprobs=(),
                fork_reason=reason,
                given=True,
            )
        before = index, row
        yield index, row


def _is_trained(message: Mapping[str, Any]) -> bool:
    """OpenAI's fine-tuning files say `"weight": 0` of context. Raises RequestError for any but 0 and 1."""
    weight = message.get("weight", 1)
    if weight not in (0, 1):
        raise RequestError(
            f"an assistant message has weight {weight!r}; it is 1 (trained, the default) or 0 (context only)",
            status=400,
            code="invalid_value",
            param="conversations",
        )
    return bool(weight)


def _prompt(
    renderer: ChatRenderer,
    messages: Sequence[Message],
    index: int,
    tools: Sequence[Tool] | None,
    before: tuple[int, SampleRow] | None,
) -> tuple[list[int], str | None]:
    """The ids before an assistant's message, and the reason where they do not extend the turn before."""
    if index == 0:
        return renderer.first_prompt(messages[0], tools), None
    if before is None:
        return renderer.render(messages[:index], tools), None
    answered, row = before
    new_messages = messages[answered + 1 : index]
    if not new_messages:
        return renderer.render(messages[:index], tools), NO_NEW_MESSAGE
    ids = renderer.bridge(row.prompt_ids, row.completion_ids, new_messages, tools)
    if ids is not None:
        return ids, None
    return renderer.render(messages[:index], tools), BRIDGE_REFUSED
