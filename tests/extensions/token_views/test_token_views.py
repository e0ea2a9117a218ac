"""Histories, tokens and compact dumps of recorded trajectories, of a real server's samples."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch

import art
from art.errors import ConfigurationError, NotRegisteredError, TokenMismatchError
from art.exchanges import exchange_of, read_reply_fields
from art.trajectories import (
    AnthropicMessagesHistory,
    ChatCompletionsHistory,
    CompletionsStringHistory,
    CompletionsTokenHistory,
    ResponsesHistory,
    TokenFlag,
    compact_dump,
    compact_validate,
    compact_validate_json,
)
from art.types import is_choice, sample_id

ASK = [{"role": "user", "content": "yes, no or maybe?"}]
SAMPLED = TokenFlag.EXACT | TokenFlag.SAMPLED | TokenFlag.ASSISTANT | TokenFlag.OUTPUT


async def two_turns(client: Any, name: str, **options: Any) -> None:
    reply = await client.chat.completions.create(model=name, messages=ASK, max_tokens=6, **options)
    said = {"role": "assistant", "content": reply.choices[0].message.content}
    await client.chat.completions.create(model=name, messages=[*ASK, said, *ASK], max_tokens=6, **options)


def ledger_row(model: art.TrainableModel, choice: Any) -> dict[str, Any]:
    url = f"{model.inference_base_url}/samples/{sample_id(choice)}"
    reply = httpx.get(url, headers={"authorization": f"Bearer {model.inference_api_key}"}, timeout=60)
    row: dict[str, Any] = reply.raise_for_status().json()
    return row


@pytest.mark.slow
async def test_every_sampled_token_is_exact(tmp_path: Path) -> None:
    model = art.TrainableModel(name="agent", project="tokens", base_model="art/nano")
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        name, client = model.get_inference_name(), model.openai_client()
        with art.Trajectory(reward=1.0) as trajectory:
            await two_turns(client, name)
        rows = [ledger_row(model, one) for one in trajectory.messages_and_choices if is_choice(one)]
        tokens = trajectory.tokenize()
        assert tokens.tokens == [*rows[1]["prompt_ids"], *rows[1]["completion_ids"]]
        expected = [math.nan] * len(tokens.tokens)
        for row in rows:
            at = len(row["prompt_ids"])
            assert tokens.tokens[at : at + len(row["completion_ids"])] == row["completion_ids"]
            expected[at : at + len(row["completion_ids"])] = row["completion_logprobs"]
        assert str(tokens.logprobs) == str(expected), "equal, NaN at the same places"
        is_sampled = [flag & SAMPLED == SAMPLED for flag in tokens.flags]
        assert is_sampled == [not math.isnan(one) for one in expected]
        assert all(TokenFlag.EXACT in flag for flag in tokens.flags)
        assert all(TokenFlag.RAW_LOGPROBS in flag for flag in tokens.flags if TokenFlag.SAMPLED in flag)
        for row in rows:
            end = len(row["prompt_ids"]) + len(row["completion_ids"]) - 1
            assert (TokenFlag.STOP in tokens.flags[end]) == (row["finish_reason"] == "stop")

        tensors = art.tensorize(trajectory, device="cpu")
        assert tensors.tokens.dtype is torch.int64 and tensors.tokens.tolist() == tokens.tokens
        assert torch.equal(tensors.flags, torch.tensor([int(one) for one in tokens.flags], dtype=torch.int32))
        assert torch.equal(torch.isnan(tensors.logprobs), ~torch.tensor(is_sampled))
        assert tensors.to("cpu").tokens.tolist() == tensors.to_("cpu").tokens.tolist() == tokens.tokens

        # The same of what was loaded again, which has to be told whom to ask.
        again = compact_validate_json(json.dumps(trajectory.compact_dump()))
        with pytest.raises(NotRegisteredError, match="model="):
            again.tokenize()
        assert again.tokenize(model=model).tokens == tokens.tokens

        # Tokens that the reply has itself, warmer than the model's own distribution, over the user's client.
        plain = openai.AsyncOpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key)
        wanted = {"logprobs": True, "temperature": 1.5, "extra_body": {"return_token_ids": True}}
        with art.Trajectory() as warm:
            await two_turns(plain, name, **wanted)
            await plain.chat.completions.create(model=name, messages=ASK, n=2, max_tokens=6, **wanted)
        by_reply = art.Trajectory.model_validate_json(warm.model_dump_json()).tokenize(multi_history=True)
        by_ledger = warm.tokenize(multi_history=True)
        assert [one.tokens for one in by_reply.histories] == [one.tokens for one in by_ledger.histories]
        assert len(by_ledger.histories) == 3
        for one in by_reply.histories:
            assert not any(TokenFlag.RAW_LOGPROBS in flag for flag in one.flags)
            assert any(TokenFlag.PROCESSED_LOGPROBS in flag for flag in one.flags)
        with pytest.raises(ConfigurationError, match="3 sequences"):
            warm.tokenize()
        masks = by_ledger.first_occurrence_masks()
        counted = sum(map(sum, masks))
        distinct = {
            tuple(one.tokens[: at + 1])
            for one in by_ledger.histories
            for at, flag in enumerate(one.flags)
            if TokenFlag.SAMPLED in flag
        }
        assert counted == len(distinct)

        group = art.TrajectoryGroup([trajectory, again])
        assert [len(one.tokens) for one in art.tokenize(group, model=model)] == [len(tokens.tokens)] * 2
        foreign = [dict(one) if isinstance(one, dict) else one for one in trajectory.messages_and_choices]
        foreign[1] = foreign[1].model_copy(update={"sample_id": "cmpl_0"})
        with pytest.raises(TokenMismatchError, match="cmpl_0"):
            art.Trajectory(messages_and_choices=foreign).tokenize(model=model)


def recorded(dialect: Any, request: dict[str, Any], reply: dict[str, Any], at: float = 1.0) -> Any:
    return exchange_of(dialect, request, read_reply_fields(dialect, {"model": "m", **reply}), at, at + 1)


def chat(said: str, *messages: dict[str, Any], model: str = "m", at: float = 1.0) -> Any:
    message = {"role": "assistant", "content": said}
    reply = {
        "id": said,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    return recorded("chat_completions", {"model": model, "messages": list(messages)}, reply, at)


def test_histories_are_those_of_their_dialect() -> None:
    text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "7"}]}
    blocks = [{"type": "text", "text": "hi"}]
    exchanges = {
        "chat_completions": [
            chat("a", *ASK),
            chat("b", *ASK, {"role": "assistant", "content": "a"}, *ASK, at=3),
        ],
        "messages": [
            recorded(
                "messages",
                {"system": "s", "messages": [{"role": "user", "content": "x"}]},
                {"content": blocks},
                5,
            )
        ],
        "responses": [
            recorded("responses", {"input": "p"}, {"id": "r1", "output": [text], "status": "completed"}, 7),
            recorded(
                "responses",
                {"input": "q", "previous_response_id": "r1"},
                {"id": "r2", "output": [text], "status": "completed"},
                9,
            ),
        ],
        "completions": [
            recorded(
                "completions", {"prompt": "once"}, {"id": "c", "choices": [{"index": 0, "text": " upon"}]}, 11
            ),
            recorded(
                "completions",
                {"prompt": [1, 2]},
                {"id": "d", "choices": [{"index": 0, "text": "x", "token_ids": [3]}]},
                13,
            ),
        ],
    }
    trajectory = art.Trajectory(exchanges=exchanges)
    found = trajectory.histories()
    assert [type(one) for one in found] == [
        ChatCompletionsHistory,
        AnthropicMessagesHistory,
        ResponsesHistory,
        CompletionsStringHistory,
        CompletionsTokenHistory,
    ]
    one = trajectory.chat_completions_history()
    assert [message["content"] for message in one.messages] == [
        ASK[0]["content"],
        "a",
        ASK[0]["content"],
        "b",
    ]
    first, second = trajectory.exchanges.chat_completions
    assert [source is not None for source in one.sources] == [False, True, False, True]
    assert one.sources[1] is first and one.sources[3] is second and one.exchanges == [first, second]
    anthropic = trajectory.anthropic_messages_history()
    assert anthropic.system == "s" and anthropic.messages[-1]["content"] == blocks
    as_chat = anthropic.as_chat_completions_history()
    assert [message["role"] for message in as_chat.messages] == ["system", "user", "assistant"]
    items = trajectory.responses_history().items
    assert [item.get("role") for item in items] == ["user", "assistant", "user", "assistant"]
    assert trajectory.completions_string_history().completion == " upon"
    token = trajectory.completions_token_history()
    assert (token.prompt, token.completion) == ([1, 2], [3])
    with pytest.raises(ConfigurationError, match="5 such histories"):
        trajectory.history()
    with pytest.raises(ConfigurationError, match="no turn that ART's server sampled"):
        trajectory.tokenize()
    with pytest.raises(ConfigurationError, match="no such history"):
        art.Trajectory().history()
    with pytest.raises(ValueError, match="Extra inputs"):
        ChatCompletionsHistory(message=[])  # type: ignore[call-arg]


def test_histories_of_one_model_and_of_written_messages() -> None:
    trajectory = art.Trajectory(
        exchanges={"chat_completions": [chat("a", *ASK), chat("b", *ASK, model="n", at=3)]}
    )
    assert trajectory.history(model="n").messages[-1]["content"] == "b"
    assert len(trajectory.histories()) == 2
    further = [art.History(messages_and_choices=ASK)]
    written = art.Trajectory(messages_and_choices=[*ASK, *ASK], additional_histories=further)
    assert [len(one.messages) for one in written.chat_completions_histories()] == [2, 1]
    assert art.Trajectory(messages_and_choices=ASK).history().messages == ASK


def test_a_compact_dump_grows_with_the_turns_and_loses_nothing() -> None:
    def talk(turns: int) -> art.Trajectory:
        messages: list[dict[str, Any]] = []
        exchanges = []
        for turn in range(turns):
            messages.append({"role": "user", "content": f"question number {turn}, " + "and so on " * 5})
            said = f"answer number {turn}, " + "and so forth " * 5
            exchanges.append(chat(said, *messages, at=float(turn)))
            messages.append({"role": "assistant", "content": said})
        return art.Trajectory(
            exchanges={"chat_completions": exchanges},
            reward=0.5,
            metadata={"a": 1},
            metrics={"m": 2},
            logs=["l"],
        )

    sizes = [len(json.dumps(talk(turns).compact_dump())) for turns in (10, 20, 40)]
    assert sizes[2] < 3 * sizes[1] < 9 * sizes[0]
    plain = [len(talk(turns).model_dump_json()) for turns in (10, 40)]
    assert plain[1] > 10 * plain[0] and sizes[2] < plain[1] / 4
    one = talk(3)
    one.metadata["$"] = "$"
    again = compact_validate(json.loads(json.dumps(compact_dump(one))))
    assert again == one or again.model_dump() == one.model_dump()
    assert again.start_time == one.start_time and again.rollout_id == one.rollout_id
    marked = art.Trajectory(messages_and_choices=[{"role": "user", "content": "x", "extra": {"$": 7}}])
    assert compact_validate(compact_dump(marked)).messages_and_choices == marked.messages_and_choices

    class Mine(art.Trajectory):
        flavour: str = ""

    mine = Mine(messages_and_choices=ASK, flavour="sour")
    assert compact_validate(compact_dump(mine), type=Mine).flavour == "sour"
    unscored = art.Trajectory(messages_and_choices=ASK, reward=art.Unscored("judge down"))
    group = art.TrajectoryGroup([one, unscored], exceptions=[KeyError("lost")], metadata={"s": 1}, logs=["x"])
    read = compact_validate(compact_dump([group]))
    assert len(read) == 1 and read[0].model_dump() == group.model_dump()
    assert read[0].trajectories[1].reward == art.Unscored("judge down")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "x"}, "no dump of"),
        ({"version": 9}, "version 9"),
        ({"kind": "tree"}, "kind 'tree'"),
        ({"strings": ["{"]}, "damaged"),
        ({"data": {"$": 99}}, "damaged"),
        ({"data": {"$": -1}, "strings": ["{}"]}, "damaged"),
        ({"data": {"$": True}, "strings": ["1", "2"]}, "damaged"),
    ],
)
def test_a_dump_that_is_none_is_refused(change: dict[str, Any], said: str) -> None:
    good = compact_dump(art.Trajectory(messages_and_choices=ASK))
    with pytest.raises(ConfigurationError, match=said):
        compact_validate({**good, **change})
    with pytest.raises(ConfigurationError, match="not of TrajectoryGroup"):
        compact_validate(good, type=art.TrajectoryGroup)
    with pytest.raises(TypeError, match="compact_dump"):
        compact_dump(3)
