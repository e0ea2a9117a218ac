"""Trajectories to learn from: what is sent, what is refused, what is logged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat.chat_completion import Choice
from wire_double import Double

import art
from art.client.requests.train_request import train_groups
from art.client.sft import sft_request as sft
from art.errors import ConfigurationError, RequestError
from art.types import TrainSFTConfig
from art.wire.jobs import SftJobRequest

USER = {"role": "user", "content": "Well?"}
YES = {"role": "assistant", "content": "yes"}


def talk(*said: Any, **fields: Any) -> art.Trajectory:
    return art.Trajectory(messages_and_choices=[USER, *said], **fields)


def choice(text: str, sample: str | None = None, **message: Any) -> Choice:
    extra = {} if sample is None else {"sample_id": sample}
    said = {"role": "assistant", "content": text, **message}
    return Choice.model_validate({"finish_reason": "stop", "index": 0, "message": said, **extra})


def request(*trajectories: Any, config: TrainSFTConfig | None = None) -> SftJobRequest:
    made = sft.sft_request("j", trajectories, config or TrainSFTConfig(), None)
    assert made is not None
    return made


def test_dicts_and_choices_are_both_learned() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    made = request(
        talk(YES, USER, choice("no", "s1", reasoning="hm")),
        talk(choice("", tool_calls=[call]), tools=[{"name": "f", "parameters": {}}]),
    )
    first, second = made.conversations
    assert first.messages == [USER, YES, USER, {**YES, "content": "no", "reasoning_content": "hm"}]
    assert first.samples == {3: "s1"} and second.samples == {}
    assert second.messages[1]["tool_calls"] == [call]
    assert second.tools == [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def test_additional_histories_are_conversations_of_their_trajectory_s_batch() -> None:
    history = art.History(messages_and_choices=[USER, choice("sub")])
    made = request(talk(YES, additional_histories=[history]), talk(choice("a")), talk(choice("b")))
    assert made.batches == [[0, 1, 2], [3]]
    assert made.conversations[1].name == "trajectory 0, additional history 0"


def test_what_comes_again_is_sent_once() -> None:
    made = request(talk(YES), talk(choice("no")), talk(choice("yes")), talk(YES))
    assert len(made.conversations) == 2 and made.batches == [[0, 1], [0, 0]]


def test_only_the_last_turn_of_each_conversation_is_learned() -> None:
    aside = art.History(messages_and_choices=[USER, YES, USER, YES])
    said = talk(YES, USER, choice("no", "s1"), additional_histories=[aside])
    made = request(said, config=TrainSFTConfig(assistant_turns="last"))
    weights = [[one.get("weight", 1) for one in talked.messages[1::2]] for talked in made.conversations]
    assert weights == [[0, 1], [0, 1]] and made.conversations[0].samples == {3: "s1"}
    assert all("weight" not in one for one in said.messages_and_choices if isinstance(one, dict))
    assert "weight" not in str(request(said).conversations)
    with pytest.raises(ValueError, match="'all' or 'last'"):
        TrainSFTConfig(assistant_turns="first")  # type: ignore[arg-type]


def test_one_rate_for_all_or_one_a_batch() -> None:
    five = [talk(choice(str(n))) for n in range(5)]
    assert request(*five).learning_rates == [5e-5] * 3
    config = TrainSFTConfig(learning_rate=[1e-3, 0.0], batch_size=3)
    assert request(*five, config=config).learning_rates == [1e-3, 0.0]
    problem = "has 2 entries, but 5 trajectories in batches of 1 are 5 batches"
    with pytest.raises(ConfigurationError, match=problem):
        request(*five, config=TrainSFTConfig(learning_rate=[1e-3, 0.0], batch_size=1))
    with pytest.raises(ConfigurationError, match="batch 0 is -1"):
        request(*five, config=TrainSFTConfig(learning_rate=-1))


def test_the_optimizer_has_no_decay_and_clips_at_one() -> None:
    internal = {"trainer_args": {"weight_decay": 0.1, "max_grad_norm": 0.1, "adam_beta2": 0.9}}
    spec = sft.sft_optimizer(internal)
    assert (spec.weight_decay, spec.max_grad_norm, spec.betas) == (0.0, 1.0, (0.9, 0.9))


@pytest.mark.parametrize(
    ("trajectory", "error", "problem"),
    [
        (talk(), ConfigurationError, "trajectory 1 has no assistant message.*'user'"),
        (
            talk(YES, additional_histories=[art.History(messages_and_choices=[USER])]),
            ConfigurationError,
            "trajectory 1, additional history 0 has no assistant",
        ),
        (
            art.TrajectoryGroup([talk(YES)]),
            TypeError,
            "item 1 is .*not a Trajectory.*of a group give its",
        ),
    ],
)
def test_what_cannot_be_learned_is_refused_by_its_number(
    trajectory: Any, error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        request(talk(YES), trajectory)


def test_a_request_that_is_too_large_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sft, "LARGEST_SFT_BODY", 200)
    with pytest.raises(RequestError, match=r"more than the 200 .*chunk of create_sft_dataset_iterator"):
        sft.check_sft_size(request(talk(YES)))


async def test_one_call_is_one_step_and_one_row_of_the_log(
    backend: art.RemoteBackend, double: Double, model: art.TrainableModel
) -> None:
    await model.register(backend)
    result = await model.train_sft(
        (talk(choice(str(n))) for n in range(3)), TrainSFTConfig(learning_rate=1e-3, batch_size=2)
    )
    assert result.step == 1 == await model.get_step()
    (job,) = double.jobs.values()
    assert [len(batch) for batch in job["batches"]] == [2, 1]
    (row,) = history(model)
    assert row["training_step"] == 1 and row["time/step_trainer_s"] > 0
    assert row["data/sheet/trained_rollouts"] == 3 and "reward" not in str(row)

    nothing = await model.train_sft([])
    assert nothing.step == 1 and len(double.jobs) == len(history(model)) == 1
    with pytest.raises(ConfigurationError, match="there are no further options"):
        await model.train_sft([talk(YES)], _config={"beta": 1})


async def test_a_step_without_a_row_of_the_log(
    backend: art.RemoteBackend, double: Double, model: art.TrainableModel
) -> None:
    await model.register(backend)
    quiet = await model.train_sft([talk(YES)], log_metrics=False)
    assert quiet.step == 1 and quiet.metrics["data/sheet/trained_rollouts"] == 1
    await model.train_sft([talk(YES)])
    assert [row["training_step"] for row in history(model)] == [2]


@pytest.mark.extension
async def test_older_callers_get_the_metrics_of_a_step(
    backend: art.RemoteBackend, model: art.TrainableModel
) -> None:
    await model.register(backend)
    told = [one async for one in backend._train_sft(model, [talk(YES)], TrainSFTConfig(), {}, False)]
    assert len(told) == 1 and told[0]["data/sheet/trained_rollouts"] == 1
    assert [one async for one in backend._train_sft(model, [], TrainSFTConfig())] == []


def history(model: art.TrainableModel) -> list[dict[str, Any]]:
    path = Path(model.base_path) / model.project / "models" / model.name / "history.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


# allow_training_without_logprobs


def test_groups_send_messages_only_where_somebody_else_spoke() -> None:
    mixed = talk(
        YES,
        USER,
        choice("no", "s1"),
        additional_histories=[
            art.History(messages_and_choices=[USER, choice("sub", "s2"), USER, choice("lost")])
        ],
    )
    pure = talk(choice("ok", "s3"))
    (group,) = train_groups([art.TrajectoryGroup([mixed, pure])], given=True)
    first, second = group.trajectories
    assert first.samples == ["s1", "s2"] and second.samples == ["s3"] and second.given == []
    main, further = first.given
    assert main.samples == {3: "s1"} and further.samples == {1: "s2"}
    assert [message["role"] for message in further.messages] == ["user", "assistant"] * 2


def test_without_the_option_dicts_are_context() -> None:
    (group,) = train_groups([art.TrajectoryGroup([talk(YES, USER, choice("no", "s1"))])])
    assert group.trajectories[0].given == [] and group.trajectories[0].samples == ["s1"]
