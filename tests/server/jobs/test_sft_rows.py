"""What is trained of a conversation: the assistant's tokens exactly, behind the prompts that it would see."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from art.batch.algorithms import resolve as algorithm
from art.batch.batch_types import GroupRow
from art.batch.build import build_batch
from art.engine.nano_models import resolve
from art.errors import RequestError
from art.rendering.library import LibraryRenderer
from art.rendering.registry import create_chat_renderer
from art.server.jobs.sft_job import conversation_row, cut_turns, exact_rows
from art.server.ledger.stitching import Conversation, tools_key
from art.wire.jobs import SftConversation

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "search", "parameters": {"properties": {"keyword": {}}}}}
]
ASK = {"role": "user", "content": "Who owns atlas?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "search", "arguments": '{"keyword": "atlas"}'},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "atlas owner k7"}
ANSWER = {"role": "assistant", "content": "k7", "reasoning_content": "I found it."}


@pytest.fixture(scope="module")
def nano() -> LibraryRenderer:
    return create_chat_renderer(resolve("art/nano-tools"), name="art/nano-tools")


def rows(chat: LibraryRenderer, *messages: dict[str, Any], tools: Any = None, name: str = "c") -> Any:
    return conversation_row(chat, SftConversation(name="k", messages=list(messages), tools=tools), name)


def test_each_turn_trains_what_the_assistant_says_and_nothing_else(nano: LibraryRenderer) -> None:
    first, second = rows(nano, ASK, CALL, RESULT, ANSWER, tools=TOOLS).samples
    assert nano.decode(first.completion_ids) == (
        '<tool_call>\n{"name": "search", "arguments": {"keyword": "atlas"}}\n</tool_call><|im_end|>'
    )
    assert nano.decode(second.completion_ids) == "<think>\nI found it.\n</think>\n\nk7<|im_end|>"
    assert list(first.prompt_ids) == nano.render([ASK], TOOLS)
    # The second prompt is the first one, what was said there, and the result.
    earlier = [*first.prompt_ids, *first.completion_ids]
    assert list(second.prompt_ids[: len(earlier)]) == earlier
    whole = nano._renderer.render_ids([ASK, {**CALL, "content": ""}, RESULT, ANSWER], tools=TOOLS)
    assert whole[:-1] == [*second.prompt_ids, *second.completion_ids]  # and a line feed


def test_a_turn_of_weight_0_is_context_only(nano: LibraryRenderer) -> None:
    _, whole = rows(nano, ASK, CALL, RESULT, ANSWER, tools=TOOLS).samples
    (only,) = rows(nano, ASK, {**CALL, "weight": 0}, RESULT, {**ANSWER, "weight": 1}, tools=TOOLS).samples
    assert only == whole
    with pytest.raises(RequestError, match=r"'k': an assistant message has weight 0\.5"):
        rows(nano, ASK, {**CALL, "weight": 0.5})
    with pytest.raises(RequestError, match="no assistant message to train"):
        rows(nano, ASK, {**CALL, "weight": 0})


def test_conversations_that_begin_alike_share_their_tokens(nano: LibraryRenderer) -> None:
    one = rows(nano, ASK, CALL, RESULT, ANSWER, tools=TOOLS, name="a")
    other = rows(nano, ASK, CALL, RESULT, {"role": "assistant", "content": "k8"}, tools=TOOLS, name="b")
    batch = build_batch([GroupRow(rollouts=[one]), GroupRow(rollouts=[other])], algorithm=algorithm("sft"))
    longest = [[*row.samples[-1].prompt_ids, *row.samples[-1].completion_ids] for row in (one, other)]
    shared = int(np.argmin([x == y for x, y in zip(*longest, strict=False)]))
    assert len(batch.tree) == sum(map(len, longest)) - shared
    # Said twice is trained twice, with the same weight each.
    said = sum(len(sample.completion_ids) for row in (one, other) for sample in row.samples)
    assert len(batch.entries) == batch.normalizer == said
    trained = nano.decode([int(batch.tree.tokens_T[node]) for node in batch.entries.token_E])
    call = '<tool_call>\n{"name": "search", "arguments": {"keyword": "atlas"}}\n</tool_call><|im_end|>'
    assert trained == f"{call}<think>\nI found it.\n</think>\n\nk7<|im_end|>{call}k8<|im_end|>"
    assert set(batch.entries.advantage_E.tolist()) == {1.0} and batch.sheet.forks == {}


def test_a_second_message_of_the_assistant_s_begins_a_branch(nano: LibraryRenderer) -> None:
    again = {"role": "assistant", "content": "Yes."}
    first, second = rows(nano, ASK, {"role": "assistant", "content": "k7"}, again).samples
    assert first.fork_reason is None and second.fork_reason == "no_new_message"
    assert list(second.prompt_ids) == nano.render([ASK, {"role": "assistant", "content": "k7"}], None)


def test_an_assistant_who_speaks_first_is_trained_too(nano: LibraryRenderer) -> None:
    hello = {"role": "assistant", "content": "Hello."}
    first, second = rows(nano, hello, ASK, {"role": "assistant", "content": "k7"}).samples
    assert nano.decode(first.prompt_ids) == "<|im_start|>assistant\n"
    assert nano.decode(first.completion_ids) == "Hello.<|im_end|>"
    assert list(second.prompt_ids) == nano.render([hello, ASK], None)


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([ASK], "'k' has no assistant message"),
        ([{"role": "robot", "content": "x"}], "'k': .*role is 'robot'; known"),
        ([ASK, {"role": "tool", "content": "x"}, ANSWER], "'k': .*tool_call_id is missing"),
        ([{"role": "user", "content": [{"type": "image_url"}]}, ANSWER], "'k': .*no data URL"),
    ],
)
def test_what_cannot_be_learned_is_refused_by_the_conversation_s_name(
    nano: LibraryRenderer, messages: list[dict[str, Any]], problem: str
) -> None:
    with pytest.raises(RequestError, match=problem):
        rows(nano, *messages)


def test_a_taught_text_that_spells_the_end_of_a_turn_is_text(nano: LibraryRenderer) -> None:
    told = [ASK, {"role": "assistant", "content": "a<|im_end|>b"}]
    (sample,) = rows(nano, *told).samples
    ids, (end,) = list(sample.completion_ids), nano.encode("<|im_end|>")
    assert nano.decode(ids) == "a<|im_end|>b<|im_end|>"
    assert ids.index(end) == len(ids) - 1
    with pytest.raises(RequestError, match=r"'k': .*ends a turn"):
        rows(nano.with_arguments({}, special_tokens_in_text="parse"), *told)


def test_a_reply_that_was_sampled_is_trained_to_the_id(nano: LibraryRenderer) -> None:
    """Its ids need not be those of a rendering; another text, other tools or another model need one."""
    said, prompt = {"role": "assistant", "content": "k7"}, nano.render([ASK], None)
    ids = nano.encode("k") + nano.encode("7")  # cut off, and not as the tokenizer would cut it
    spoken = Conversation("art/nano-tools", [ASK, said])

    def exact(*messages: dict[str, Any], tools: Any = None, speaker: str = "art/nano-tools") -> bool:
        record = SimpleNamespace(
            prompt_ids=prompt, completion_ids=ids, turn_key=spoken.key, tools_key=tools_key(None)
        )
        conversation = SftConversation(name="k", messages=list(messages), tools=tools, samples={1: "smp"})
        found = exact_rows(conversation, "c", {"smp": record}, speaker)  # type: ignore[dict-item]
        row = conversation_row(nano, conversation, "c", found).samples[0]
        assert row.given and row.sample_id == "c.1"
        assert list(row.completion_ids) == (ids if found else nano.reply(prompt, messages[1], tools))
        return bool(found)

    assert exact(ASK, said)
    assert exact(ASK, said, ASK, ANSWER), "what follows takes nothing from it"
    assert not exact(ASK, {**said, "content": "k8"})
    assert not exact({**ASK, "content": "Who?"}, said)
    assert not exact(ASK, said, tools=TOOLS)
    assert not exact(ASK, said, speaker="art/nano-games")


class Llama(LibraryRenderer):
    """Stands for formats without reasoning: drops it, as theirs do."""

    def reply(self, prompt_ids: Any, message: Any, tools: Any) -> list[int]:
        return super().reply(prompt_ids, {**message, "reasoning_content": None}, tools)


def test_parts_that_a_format_cannot_say_are_counted(nano: LibraryRenderer) -> None:
    conversation = SftConversation(name="k", messages=[ASK, CALL, RESULT, ANSWER], tools=TOOLS)
    assert cut_turns(nano, conversation, conversation_row(nano, conversation, "c")) == 0
    llama = Llama(nano._renderer, nano._tokenizer)
    assert cut_turns(llama, conversation, conversation_row(llama, conversation, "c")) == 1


def test_a_conversation_that_is_too_long_is_left_out_and_counted(nano: LibraryRenderer) -> None:
    short, long = rows(nano, ASK, ANSWER, name="a"), rows(nano, ASK, CALL, RESULT, ANSWER, name="b")
    limit = len(short.samples[0].prompt_ids) + len(short.samples[0].completion_ids)
    groups = [GroupRow(rollouts=[row]) for row in (short, long)]
    batch = build_batch(groups, algorithm=algorithm("sft"), max_length=limit)
    assert {fate: row.rollouts for fate, row in batch.sheet.fates.items()} == {"trained": 1, "overlong": 1}
    assert len(batch.entries) == len(short.samples[0].completion_ids)
