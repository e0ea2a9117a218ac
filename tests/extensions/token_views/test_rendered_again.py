"""`tokenize(tokenizer=...)`: conversations rendered again, with or without sampled tokens to compare with."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice

import art
from art.errors import ConfigurationError
from art.history import History
from art.trajectories import TokenFlag
from art.types import is_choice
from art_extensions.token_views.rendered_again import Rendering, render_again
from art_extensions.token_views.sampled_turns import SampledTurn

TALK: list[Any] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "yes or no?"},
    {"role": "assistant", "content": "no", "reasoning_content": "a coin says no"},
    {"role": "user", "content": "again"},
    {"role": "assistant", "content": "yes", "reasoning_content": "another coin"},
]
HEAD = (
    "{% for m in messages %}{% if m.role != 'assistant' %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% else %}"
)
THOUGHT = "<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n"
TEMPLATES = {
    # Thoughts of the last turn alone, as Qwen3 has it.
    "last thought": HEAD
    + "<|im_start|>assistant\n{% if loop.last %}"
    + THOUGHT
    + "{% endif %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    # The prompt begins the thought.
    "thought begun": HEAD
    + "<|im_start|>assistant\n{% if loop.last %}"
    + THOUGHT
    + "{% endif %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}",
    # No tokens of its own around turns.
    "plain": "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    + "{% if add_generation_prompt %}[assistant]{% endif %}",
}
REPLIES = {
    "last thought": ["no<|im_end|>", "<think>\nanother coin\n</think>\n\nyes<|im_end|>"],
    "thought begun": ["no<|im_end|>", "another coin\n</think>\n\nyes<|im_end|>"],
    "plain": [" no", " yes"],
}


def tokenizer() -> Any:
    return art.get_tokenizer("art/nano-games")


def pieces(tokens: Any, flag: TokenFlag) -> list[str]:
    """The texts of what has a flag, one for each stretch."""
    found: list[list[int]] = [[]]
    for token, flags in zip(tokens.tokens, tokens.flags, strict=True):
        if flag in flags:
            found[-1].append(token)
        elif found[-1]:
            found.append([])
    return [tokenizer().decode(ids) for ids in found if ids]


@pytest.mark.parametrize("name", TEMPLATES)
def test_messages_without_samples_are_tokenized(name: str) -> None:
    trajectory = art.Trajectory(messages_and_choices=TALK, reward=1.0)
    tokens = trajectory.tokenize(tokenizer=tokenizer(), chat_template=TEMPLATES[name])
    text = tokenizer().apply_chat_template(TALK, chat_template=TEMPLATES[name], tokenize=False)
    assert tokens.tokens == tokenizer()(text, add_special_tokens=False)["input_ids"]
    assert pieces(tokens, TokenFlag.ASSISTANT) == REPLIES[name]
    assert len(pieces(tokens, TokenFlag.STOP)) == (0 if name == "plain" else 2)
    never = TokenFlag.EXACT | TokenFlag.SAMPLED | TokenFlag.OUTPUT | TokenFlag.RAW_LOGPROBS
    assert not any(flags & never for flags in tokens.flags)
    assert all(math.isnan(one) for one in tokens.logprobs)
    by_name = trajectory.tokenize(base_model="art/nano-games", chat_template=TEMPLATES[name])
    assert by_name.tokens == tokens.tokens
    tensors = trajectory.tensorize(tokenizer=tokenizer(), chat_template=TEMPLATES[name])
    assert tensors.tokens.tolist() == tokens.tokens
    group = art.tokenize(art.TrajectoryGroup([trajectory]), base_model="art/nano-games")
    assert pieces(group.trajectories[0], TokenFlag.ASSISTANT)[1].endswith("yes<|im_end|>")


def test_calls_results_and_variables_of_the_template() -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "look", "arguments": '{"where":  "hall"}'},
    }
    talk: list[Any] = [
        TALK[1],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "dark"},
        {"role": "assistant", "content": "it is dark"},
    ]
    tools: list[Any] = [
        {"type": "function", "function": {"name": "look", "parameters": {"properties": {"where": {}}}}}
    ]
    tokens = art.Trajectory(messages_and_choices=talk, tools=tools).tokenize(tokenizer=tokenizer())
    assert pieces(tokens, TokenFlag.ASSISTANT) == [
        '<tool_call>\n{"name": "look", "arguments": {"where": "hall"}}\n</tool_call><|im_end|>',
        "it is dark<|im_end|>",
    ]
    assert "look(where)" in tokenizer().decode(tokens.tokens)
    shown = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ end }}{% endfor %}"
    options = {"chat_template": shown, "chat_template_kwargs": {"end": "<|im_end|>"}}
    tokens = art.Trajectory(messages_and_choices=TALK[1:3]).tokenize(tokenizer=tokenizer(), **options)
    assert pieces(tokens, TokenFlag.ASSISTANT) == [" no<|im_end|>"], "one id has both"
    assert tokenizer().decode(tokens.tokens) == "user: yes or no?<|im_end|>assistant: no<|im_end|>"


def test_what_cannot_be_rendered_says_why() -> None:
    trajectory = art.Trajectory(messages_and_choices=TALK)
    with pytest.raises(ConfigurationError, match="give tokenizer= or base_model="):
        trajectory.tokenize()
    with pytest.raises(ConfigurationError, match="needs tokenizer=, base_model="):
        trajectory.tokenize(chat_template=TEMPLATES["plain"])
    with pytest.raises(ConfigurationError, match="give one of tokenizer= and base_model="):
        trajectory.tokenize(tokenizer=tokenizer(), base_model="art/nano")
    with pytest.raises(ConfigurationError, match="refuses the messages: no system here"):
        refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
        trajectory.tokenize(tokenizer=tokenizer(), chat_template=refusing)
    with pytest.raises(ConfigurationError, match="message 2 is another one"):
        twice = "{% for m in messages %}{{ m.content }}{% endfor %}{{ messages | length }}"
        twice += "{{ messages | map(attribute='content') | join('|') }}"
        trajectory.tokenize(tokenizer=tokenizer(), chat_template=twice)
    model = art.TrainableModel(name="agent", project="p", base_model="art/nano-games")
    known = trajectory.tokenize(model=model, chat_template=TEMPLATES["plain"])
    assert pieces(known, TokenFlag.ASSISTANT) == REPLIES["plain"]


IDS = st.lists(st.integers(5, 8), max_size=7)


def equal_places(written: list[int], other: list[int]) -> set[int]:
    """By definition: equal from the front, or from the back."""
    front = {n for n in range(len(written)) if written[: n + 1] == other[: n + 1] and n < len(other)}
    rest = len(front)
    shorter = min(len(written), len(other)) - rest
    back = {
        len(written) - n
        for n in range(1, shorter + 1)
        if written[len(written) - n :] == other[len(other) - n :]
    }
    return front | back


@given(IDS, IDS)
@settings(max_examples=60, deadline=None)
def test_ids_that_agree_are_exact_and_keep_their_logprobs(said: list[int], prompt: list[int]) -> None:
    written: list[Any] = [TALK[1], Choice.construct(index=0, message={"role": "assistant", "content": "no"})]
    rendering = Rendering(tokenizer=tokenizer(), arguments={}, template=TEMPLATES["plain"])
    plain = render_again(History(messages_and_choices=written), {}, rendering, model=None)
    begin = next(n for n, flags in enumerate(plain.flags) if TokenFlag.ASSISTANT in flags)
    end = begin + sum(TokenFlag.ASSISTANT in flags for flags in plain.flags)
    # The ledger's ids are those that were written, with other ones among them.
    reply, before = plain.tokens[begin:end], plain.tokens[:begin]
    sampled = [*reply[:1], *said, *reply[1:]]
    asked = [*before[: len(prompt)], *prompt, *before[len(prompt) :]]
    turn = SampledTurn(
        prompt_ids=asked,
        completion_ids=sampled,
        logprobs=[-float(n) for n in range(len(sampled))],
        stopped=False,
        unprocessed=True,
    )
    found = render_again(History(messages_and_choices=written), {1: turn}, rendering, model="m")
    assert found.tokens == plain.tokens
    exact = {n for n, flags in enumerate(found.flags) if TokenFlag.EXACT in flags}
    assert {n for n in exact if n < begin} == equal_places(before, asked)
    assert {n - begin for n in exact if begin <= n < end} == equal_places(reply, sampled)
    assert not {n for n in exact if n >= end}
    for n, flags in enumerate(found.flags):
        is_sampled = n in exact and begin <= n < end
        assert (TokenFlag.SAMPLED in flags) == (TokenFlag.RAW_LOGPROBS in flags) == is_sampled
        assert (TokenFlag.OUTPUT in flags) == (begin <= n < end)
        assert math.isnan(found.logprobs[n]) != is_sampled
        if is_sampled:
            assert sampled[-int(found.logprobs[n])] == found.tokens[n]
    kept = Rendering(tokenizer=tokenizer(), arguments={}, template=TEMPLATES["plain"], keep_equal_texts=True)
    found = render_again(History(messages_and_choices=written), {1: turn}, kept, model="m")
    equal_text = tokenizer().decode(sampled) == tokenizer().decode(reply)
    assert found.tokens[begin : begin + len(sampled if equal_text else reply)] == (
        sampled if equal_text else reply
    )


@pytest.mark.slow
async def test_a_sampled_conversation_is_exact_where_it_is_written_alike(tmp_path: Path) -> None:
    ask: list[Any] = [{"role": "user", "content": "yes, no or maybe?"}]
    model = art.TrainableModel(name="agent", project="again", base_model="art/nano-games")
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        name, client = model.get_inference_name(), model.openai_client()
        with art.Trajectory() as trajectory:
            reply = await client.chat.completions.create(model=name, messages=ask, max_tokens=6)
            said: Any = {"role": "assistant", "content": reply.choices[0].message.content}
            await client.chat.completions.create(model=name, messages=[*ask, said, *ask], max_tokens=6)
        ledger = trajectory.tokenize()
        kept = trajectory.tokenize(
            model=model, base_model="art/nano-games", reconcile_text_equivalent_tokenizations=True
        )
        whole = len(ledger.tokens)
        turns: list[Any] = [one for one in trajectory.messages_and_choices if is_choice(one)]
        assert [one.finish_reason for one in turns] == ["stop", "stop"], (
            "what was cut off is written with an end"
        )
        assert kept.tokens[:whole] == ledger.tokens and len(kept.tokens) == whole + 1, "a line ends after it"
        assert str(kept.logprobs[:whole]) == str(ledger.logprobs)
        assert kept.flags[:whole] == ledger.flags and kept.flags[whole:] == [TokenFlag(0)]
        other = trajectory.tokenize(tokenizer=art.get_tokenizer("art/nano-tools"))
        assert other.tokens != kept.tokens
        assert pieces(kept, TokenFlag.ASSISTANT) == pieces(ledger, TokenFlag.ASSISTANT)
        alone = art.Trajectory.model_validate_json(trajectory.model_dump_json()).tokenize(
            tokenizer=tokenizer()
        )
        assert not any(TokenFlag.EXACT in flags for flags in alone.flags), "nobody can be asked"
