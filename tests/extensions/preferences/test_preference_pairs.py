"""What a preference is read from, what is sent of it, and what is refused, by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat.chat_completion import Choice

import art
from art.errors import ConfigurationError
from art.types import Unscored
from art.wire.jobs import SftConversation
from art_extensions.preferences import (
    LabelledReply,
    PreferencePair,
    pairs_of_groups,
    read_labelled,
    read_pairs,
    train_dpo,
    train_kto,
    train_reward_model,
)
from art_extensions.preferences.pairs import (
    labelled_replies,
    pair_conversations,
    preference_pairs,
    reply_conversation,
)
from art_extensions.preferences.questions import QUESTION, asked_conversations, score_of

ASK = {"role": "user", "content": "Well?"}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def talk(*messages: Any, **fields: Any) -> art.Trajectory:
    return art.Trajectory(messages_and_choices=list(messages), **fields)


def pair(chosen: art.Trajectory, rejected: art.Trajectory) -> PreferencePair:
    return PreferencePair(chosen=chosen, rejected=rejected)


def sides(row: Any) -> tuple[SftConversation, SftConversation]:
    (found,) = preference_pairs([row])
    return pair_conversations(0, found)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Well?", "chosen": "yes", "rejected": "no"},
        {"prompt": [ASK], "chosen": [said("yes")], "rejected": [said("no")], "tools": None},
        {"chosen": [ASK, said("yes")], "rejected": [ASK, said("no")]},
        {
            "input": {"messages": [ASK]},
            "preferred_output": [said("yes")],
            "non_preferred_output": [said("no")],
        },
        pair(talk(ASK, said("yes")), talk(ASK, said("no"))),
    ],
    ids=["texts", "messages", "conversations", "openai", "trajectories"],
)
def test_every_form_says_the_same_pair(row: Any) -> None:
    chosen, rejected = sides(row)
    assert (chosen.messages, rejected.messages) == ([ASK, said("yes")], [ASK, said("no")])
    assert (chosen.name, rejected.name) == ("pair 0, chosen", "pair 0, rejected")


def test_what_both_sides_share_is_context_and_what_follows_is_learned() -> None:
    row = {
        "prompt": [SYSTEM, ASK, said("hm"), ASK],
        "chosen": [said("yes"), ASK, said("sure")],
        "rejected": [said("yes"), ASK, said("no")],
        "tools": [TOOL],
    }
    chosen, rejected = sides(row)
    weights = [one.get("weight", 1) for one in chosen.messages if one["role"] == "assistant"]
    assert weights == [0, 0, 1], "the reply that both give is a part of the prompt"
    assert chosen.tools == rejected.tools == [TOOL]


def test_what_was_sampled_keeps_the_name_of_its_sample() -> None:
    choice = Choice.model_validate(
        {"finish_reason": "stop", "index": 0, "message": said("yes"), "sample_id": "s1"}
    )
    chosen, rejected = pair_conversations(0, pair(talk(ASK, choice), talk(ASK, said("no"))))
    assert chosen.samples == {1: "s1"} and rejected.samples == {}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "Well?", "chosen": "yes", "rejected": "yes"}, "pair 0: chosen and rejected are equal"),
        ({"prompt": "Well?", "chosen": "", "rejected": "no"}, "pair 0, chosen is empty"),
        ({"prompt": "Well?", "chosen": "yes"}, "pair 0 has no 'rejected'; its keys: 'prompt', 'chosen'"),
        ({"chosen": "Well? yes", "rejected": "Well? no"}, "pair 0 has texts and no 'prompt'"),
        ({"chosen": [said("yes")], "rejected": [said("no")]}, "pair 0, chosen has no prompt"),
        (
            {"chosen": [ASK, said("yes")], "rejected": [{**ASK, "content": "So?"}, said("no")]},
            "pair 0: chosen and rejected have different prompts: their message 0 is of role 'user'",
        ),
        (
            pair(talk(ASK, said("yes")), talk(ASK, said("yes"), ASK, said("no"))),
            "pair 0, chosen is empty: the assistant says nothing behind the prompt",
        ),
        (pair(talk(ASK, said("yes")), talk()), "pair 0, rejected is empty: it has no messages"),
        (pair(talk(ASK, said("yes")), talk(ASK)), "pair 0, rejected is empty"),
        (
            pair(talk(ASK, said("yes")), talk(ASK, said("no"), tools=[TOOL])),
            "pair 0: chosen and rejected are offered different tools",
        ),
        (
            pair(
                talk(ASK, said("yes")),
                talk(
                    ASK, said("no"), additional_histories=[art.History(messages_and_choices=[ASK, said("a")])]
                ),
            ),
            "pair 0, rejected has additional histories",
        ),
    ],
)
def test_what_is_no_pair_is_refused_by_name(row: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        sides(row)
    assert problem in str(refused.value)


def test_what_is_no_list_of_rows_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'pairs.jsonl' is a path: read it with read_pairs"):
        preference_pairs("pairs.jsonl")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="a dict is one row"):
        preference_pairs({"prompt": "a", "chosen": "b", "rejected": "c"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"pair 0 is .*, not a PreferencePair and not a row"):
        preference_pairs([talk(ASK)])  # type: ignore[list-item]


def test_files_are_read_line_by_line_and_a_bad_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": "Well?", "chosen": "yes", "rejected": "no"}, {"prompt": "So?", "chosen": "a"}]
    file.write_text(json.dumps(rows[0]) + "\n\n" + json.dumps(rows[0]) + "\n")
    assert len(read_pairs(file)) == 2
    file.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ConfigurationError, match=r"rows.jsonl, line 2 has no 'rejected'"):
        read_pairs(file)
    file.write_text('{"prompt": ')
    with pytest.raises(ConfigurationError, match=r"rows.jsonl, line 1 is not valid JSON"):
        read_labelled(file)


def test_the_best_of_a_group_against_its_worst() -> None:
    def group(*rewards: Any) -> art.TrajectoryGroup:
        return art.TrajectoryGroup(
            [talk(ASK, said(str(number)), reward=reward) for number, reward in enumerate(rewards)]
        )

    groups = [group(0.2, 0.9, 0.4), group(0.5, 0.5), group(1.0), group(0.0, Unscored("late"), 0.3)]
    found = pairs_of_groups(groups)
    assert [(one.chosen.reward, one.rejected.reward) for one in found] == [(0.9, 0.2), (0.3, 0.0)]
    assert len(pairs_of_groups(groups, least_difference=0.3)) == 1
    for wrong in (-1.0, math.nan):
        with pytest.raises(ConfigurationError, match="least_difference"):
            pairs_of_groups(groups, least_difference=wrong)


def test_a_labelled_reply_is_what_follows_the_last_question() -> None:
    (reply,) = labelled_replies([{"prompt": [ASK, said("hm"), ASK], "completion": "yes", "label": True}])
    assert reply.desirable
    weights = [
        one.get("weight", 1) for one in reply_conversation(0, reply).messages if one["role"] == "assistant"
    ]
    assert weights == [0, 1]
    trajectory = talk(ASK, said("hm"), ASK, said("no"))
    conversation = reply_conversation(3, LabelledReply(trajectory=trajectory, desirable=False))
    assert [one.get("weight", 1) for one in conversation.messages if one["role"] == "assistant"] == [0, 1]


@pytest.mark.parametrize("label", [None, 1, "yes", math.nan])
def test_a_label_is_true_or_false(label: Any) -> None:
    with pytest.raises(ConfigurationError, match="example 0 has the label"):
        labelled_replies([{"prompt": "Well?", "completion": "yes", "label": label}])


def test_a_reward_model_is_asked_behind_the_conversation() -> None:
    chosen, _ = sides({"prompt": "Well?", "chosen": "yes", "rejected": "no"})
    good, bad = asked_conversations(chosen, QUESTION)
    context = [ASK, {**said("yes"), "weight": 0}, {"role": "user", "content": QUESTION}]
    assert good.messages == [*context, said("1")] and bad.messages == [*context, said("0")]
    assert score_of({"1": -0.25, "0": -1.5}) == 1.25
    assert score_of({"1": -0.25}) is None and score_of({"1": -math.inf, "0": 0.0}) is None


ROWS = [{"prompt": "Well?", "chosen": "yes", "rejected": "no"}]
LABELLED = [{"prompt": "Well?", "completion": "yes", "label": True}] * 2


@pytest.mark.parametrize(
    ("train", "rows", "options", "problem"),
    [
        (train_dpo, ROWS, {"beta": 0.0}, "beta is 0.0; it is a finite number above 0"),
        (train_dpo, ROWS, {"beta": math.nan}, "beta is nan"),
        (train_dpo, ROWS, {"beta": True}, "beta is True"),
        (train_dpo, ROWS, {"loss": "hinge"}, "loss is 'hinge'; it is 'sigmoid' or 'ipo'"),
        (train_dpo, ROWS, {"label_smoothing": 0.5}, "label_smoothing is 0.5"),
        (train_dpo, ROWS, {"label_smoothing": math.nan}, "label_smoothing is nan"),
        (train_dpo, ROWS, {"loss": "ipo", "label_smoothing": 0.1}, "acts on loss 'sigmoid', not on 'ipo'"),
        (train_dpo, ROWS, {"reference": -1}, "reference is -1"),
        (train_dpo, ROWS, {"reference": ""}, "reference is ''"),
        (train_dpo, ROWS, {"batchsize": 2}, "no option 'batchsize': did you mean 'batch_size'"),
        (train_dpo, ROWS, {"batch_size": 0}, "batch_size is 0; it is a whole number from 1 on"),
        (train_dpo, ROWS, {"epochs": 0}, "epochs is 0"),
        (train_kto, LABELLED, {"beta": -1.0}, "beta is -1.0"),
        (train_kto, LABELLED, {"desirable_weight": 0}, "desirable_weight is 0"),
        (train_kto, LABELLED, {"undesirable_weight": math.inf}, "undesirable_weight is inf"),
        (train_kto, LABELLED, {"batch_size": 1}, "batch_size is 1; it is a whole number from 2 on"),
        (train_reward_model, ROWS, {"question": " "}, "a reward model is asked something"),
        (train_reward_model, ROWS, {"beta": 0.1}, "no option 'beta'"),
    ],
)
async def test_wrong_options_are_refused_by_name_before_anything_is_sent(
    train: Any, rows: Any, options: dict[str, Any], problem: str
) -> None:
    model = art.TrainableModel(name="m", project="p", base_model="art/nano-games")
    with pytest.raises(ConfigurationError) as refused:
        await train(model, rows, **options)
    assert problem in str(refused.value)
