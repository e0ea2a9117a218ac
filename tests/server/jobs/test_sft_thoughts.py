"""What is learned of examples with reasoning: every thought that is written, and no token of the prompt.

Reported of other trainers: the `<think>` that a prompt ends with was trained as if the model had sampled it
(thinking-machines-lab/tinker-cookbook#864), and of several turns only the last one's reasoning was, as the
template leaves out the others' (PrimeIntellect-ai/renderers#41).
"""

from __future__ import annotations

from typing import Any

import pytest

from art.batch.algorithms import resolve as algorithm
from art.batch.batch_types import GroupRow
from art.batch.build import build_batch
from art.engine.nano_models import resolve
from art.rendering.library import LibraryRenderer
from art.rendering.registry import create_chat_renderer
from art.server.jobs.sft_job import conversation_row
from art.server.ledger.stitching import BRIDGE_REFUSED
from art.wire.jobs import SftConversation

TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
LAST = "loop.index0 > ns.last"
"""Behind the last user's message, as Qwen 3 has it."""


def template(thought_if: str, opening: str) -> str:
    """thought_if: when a thought is written, which may be empty. opening: the end of a prompt."""
    return (
        "{% set ns = namespace(last=-1) %}{% for m in messages %}"
        "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}{% if m.role != 'assistant' %}" + TURN + "{% else %}<|im_start|>assistant\n"
        "{% if " + thought_if + " %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}"
        "{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n" + opening + "{% endif %}"
    )


def turn(number: int, *, thought: bool = True) -> list[dict[str, Any]]:
    said = {"role": "assistant", "content": f"answer {number}"}
    if thought:
        said["reasoning_content"] = f"thought {number}"
    return [{"role": "user", "content": f"question {number}"}, said]


@pytest.fixture(scope="module")
def nano() -> LibraryRenderer:
    return create_chat_renderer(resolve("art/nano-tools"), name="art/nano-tools")


def samples(chat: LibraryRenderer, *messages: dict[str, Any]) -> Any:
    return conversation_row(chat, SftConversation(name="k", messages=list(messages)), "c").samples


def trained(chat: LibraryRenderer, *messages: dict[str, Any]) -> str:
    """The text of the tokens that have a weight, in their order."""
    row = conversation_row(chat, SftConversation(name="k", messages=list(messages)), "c")
    batch = build_batch([GroupRow(rollouts=[row])], algorithm=algorithm("sft"))
    assert all(batch.entries.weight_E > 0) and len(batch.entries) == batch.normalizer
    return chat.decode([int(batch.tree.tokens_T[node]) for node in batch.entries.token_E])


@pytest.mark.parametrize("thought_if", ["true", LAST])
def test_a_thought_that_the_prompt_has_begun_is_not_trained(nano: LibraryRenderer, thought_if: str) -> None:
    chat = nano.with_arguments({}, template=template(thought_if, "<think>\n"))
    (sample,) = samples(chat, *turn(1))
    assert chat.decode(sample.prompt_ids).endswith("question 1<|im_end|>\n<|im_start|>assistant\n<think>\n")
    assert list(sample.prompt_ids) == chat.render(turn(1)[:1], None)
    assert trained(chat, *turn(1)) == "thought 1\n</think>\n\nanswer 1<|im_end|>"
    # A thought that is not there ends at once: its end is the model's, its beginning is not.
    plain = trained(chat, *turn(1, thought=False))
    assert plain.strip() == "</think>\n\nanswer 1<|im_end|>" and "<think>" not in plain
    several = trained(chat, *turn(1), *turn(2))
    assert several == "".join(f"thought {n}\n</think>\n\nanswer {n}<|im_end|>" for n in (1, 2))


def test_where_the_model_begins_its_thoughts_they_are_trained_whole(nano: LibraryRenderer) -> None:
    chat = nano.with_arguments({}, template=template("true", ""))
    assert trained(chat, *turn(1)) == "<think>\nthought 1\n</think>\n\nanswer 1<|im_end|>"


THREE = [*turn(1), *turn(2), *turn(3)]
THOUGHTS = "".join(f"<think>\nthought {n}\n</think>\n\nanswer {n}<|im_end|>" for n in (1, 2, 3))


@pytest.mark.parametrize("thought_if", ["true", f"m.reasoning_content and {LAST}"])
def test_of_three_turns_every_thought_is_trained_and_stays(nano: LibraryRenderer, thought_if: str) -> None:
    """Also where the template leaves out the thoughts of earlier turns: as the server prompts."""
    for chat in (nano, nano.with_arguments({}, template=template(thought_if, ""))):
        first, second, third = samples(chat, *THREE)
        assert trained(chat, *THREE) == THOUGHTS
        for before, after in ((first, second), (second, third)):
            earlier = [*before.prompt_ids, *before.completion_ids]
            assert list(after.prompt_ids[: len(earlier)]) == earlier and after.fork_reason is None
    whole = chat.decode([*third.prompt_ids, *third.completion_ids])
    assert [whole.count(f"thought {n}") for n in (1, 2, 3)] == [1, 1, 1]


def test_where_turns_cannot_be_joined_each_thought_is_trained_behind_its_own_prompt(
    nano: LibraryRenderer,
) -> None:
    """A template that takes the thought out of every turn that is over: also the empty one of the probe."""
    chat = nano.with_arguments({}, template=template(LAST, ""))
    first, second, third = samples(chat, *THREE)
    assert first.fork_reason is None and second.fork_reason == third.fork_reason == BRIDGE_REFUSED
    said = trained(chat, *THREE).split("<|im_end|>")
    assert sorted(said) == sorted(THOUGHTS.split("<|im_end|>"))
    assert list(third.prompt_ids) == chat.render(THREE[:5], None)
    assert "thought" not in chat.decode(third.prompt_ids)


def test_the_last_turn_alone_and_weights_choose_among_them(nano: LibraryRenderer) -> None:
    chosen = [*turn(1), *turn(2), *turn(3)]
    chosen[1]["weight"] = chosen[3]["weight"] = 0  # as assistant_turns="last" has it
    assert trained(nano, *chosen) == THOUGHTS.partition("answer 2<|im_end|>")[2]
