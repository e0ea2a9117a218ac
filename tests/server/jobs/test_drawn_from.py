"""Which distribution a sample is trained under, and what becomes of those that can only be context."""

from __future__ import annotations

import dataclasses
from array import array

import pytest
from ledger_rows import drawn, nano

from art.batch.batch_types import Untrainable
from art.batch.build import build_batch
from art.errors import RequestError
from art.server.jobs.train_rows import group_rows, refuse_untrainable, sampling_distribution
from art.server.ledger.schema import SampleRecord
from art.wire.algorithm import AdvantageSpec, Algorithm, TeacherSpec
from art.wire.jobs import TrainJobRequest
from art.wire.sampling import Constraint
from art.wire.training import SamplingSpec


@pytest.mark.parametrize(
    ("recorded", "spec"),
    [
        ({}, SamplingSpec()),
        ({"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "max_tokens": 9}, SamplingSpec()),
        ({"temperature": 0.7, "top_k": 20}, SamplingSpec(temperature=0.7, top_k=20)),
        ({"top_p": 0.9, "min_p": 0.05, "seed": 1, "stop": ["x"]}, SamplingSpec(top_p=0.9, min_p=0.05)),
        ({"presence_penalty": 0.0, "repetition_penalty": 1, "top_p": None}, SamplingSpec()),
        (
            {"logit_bias": [[7, 2.5]], "temperature": 0.5},
            SamplingSpec(logit_bias=((7, 2.5),), temperature=0.5),
        ),
        (
            {"constraint": {"kind": "regex", "text": "a+", "by": "builtin"}, "stop_token_ids": [3, 4]},
            SamplingSpec(constraint=Constraint(kind="regex", text="a+"), stop_token_ids=(3, 4)),
        ),
        (
            {"constraint": {"kind": "regex", "text": "a+", "by": "vllm-guidance"}, "stop_token_ids": [3]},
            SamplingSpec(
                constraint=Constraint(kind="regex", text="a+"), stop_token_ids=(3,), masked_by="vllm-guidance"
            ),
        ),
        (
            {"presence_penalty": 0.5, "frequency_penalty": -1, "repetition_penalty": 1.1},
            SamplingSpec(presence_penalty=0.5, frequency_penalty=-1, repetition_penalty=1.1),
        ),
        (
            {"min_tokens": 3, "stop_token_ids": [7]},
            SamplingSpec(min_tokens=3, stop_token_ids=(7,)),
        ),
        ({"stop_token_ids": [7]}, SamplingSpec()),
    ],
)
def test_the_recorded_distribution_is_the_one_that_is_trained(recorded: dict, spec: SamplingSpec) -> None:
    assert sampling_distribution(drawn(**recorded), Algorithm()) == spec


@pytest.mark.parametrize(
    ("recorded", "reason", "named"),
    [
        ({"temperature": 0.0}, "greedy", "temperature = 0.0"),
        ({"temperature": 1e-9}, "greedy", "temperature = 1e-09"),
        ({"top_k": 1}, "greedy", "top_k = 1"),
        ({"min_p": 1.0}, "greedy", "min_p = 1.0"),
        ({"min_tokens": 3}, "unknown", "min_tokens = 3, without the ids that it forbade"),
        ({"presence_penalty": "much"}, "unknown", "presence_penalty = 'much'"),
        ({"logit_bias": {"7": 100}}, "unknown", "logit_bias = {'7': 100}"),
        (
            {"constraint": {"kind": "regex", "text": "a+", "by": "vllm"}, "stop_token_ids": [3]},
            "constraint",
            "a regex constraint by engine 'vllm'",
        ),
        ({"typical_p": 0.9}, "unknown", "typical_p = 0.9"),
        ({"top_p": 0.0}, "unknown", "top_p = 0.0"),
    ],
)
def test_what_the_trainer_does_not_compute_is_context_with_its_reason(
    recorded: dict, reason: str, named: str
) -> None:
    assert sampling_distribution(drawn(**recorded), Algorithm()) == Untrainable(reason=reason, drawn=named)  # type: ignore[arg-type]


def two_calls(reward: float = 1.0) -> TrainJobRequest:
    trajectory = {"rollout": "r1", "reward": reward, "samples": ["s1", "s2"]}
    other = {"rollout": "r2", "reward": 0.0, "samples": ["s3"]}
    return TrainJobRequest(
        job_id="j", groups=[{"trajectories": [trajectory, other]}], optimizer={"learning_rate": 1e-3}
    )


def three_records(*sampling: dict) -> dict[str, SampleRecord]:
    return {
        f"s{n}": dataclasses.replace(drawn(**one), sample_id=f"s{n}", completion_ids=array("i", [2 + n]))
        for n, one in enumerate(sampling, 1)
    }


def test_one_greedy_call_of_an_agent_leaves_the_others_to_be_trained() -> None:
    rows = group_rows(two_calls(), three_records({}, {"temperature": 0}, {}), nano())
    batch = build_batch(rows)
    refuse_untrainable(rows, batch.sheet)
    assert len(batch.entries) == 2 and batch.sheet.context["greedy"].samples == 1
    assert batch.sheet.fates["context"].tokens == 1 and batch.sheet.fates["trained"].rollouts == 2


def test_a_call_in_which_nothing_can_be_trained_says_why() -> None:
    rows = group_rows(two_calls(), three_records({"temperature": 0}, {"typical_p": 1}, {"top_k": 1}), nano())
    with pytest.raises(
        RequestError, match=r"nothing can be trained: of 2 rollouts 2 have no sample"
    ) as refused:
        refuse_untrainable(rows, build_batch(rows).sheet)
    said = str(refused.value)
    assert "2 greedy (drawn greedily" in said and "1 unknown (" in said and "a temperature above 0" in said
    assert "'s1' of rollout 'r1', drawn with temperature = 0" in said
    assert refused.value.code == "untrainable_sampling"


def test_a_step_with_equal_rewards_and_greedy_samples_goes_on() -> None:
    """Something could have been trained: its reward said nothing."""
    rows = group_rows(two_calls(reward=0.0), three_records({"temperature": 0}, {"top_k": 1}, {}), nano())
    batch = build_batch(rows)
    refuse_untrainable(rows, batch.sheet)
    assert batch.empty and {"untrainable", "zero_advantage"} == set(batch.sheet.fates)


def test_a_rollout_is_as_old_as_the_samples_that_are_trained() -> None:
    records = three_records({}, {"temperature": 0}, {})
    records["s2"] = dataclasses.replace(records["s2"], step=1)
    ((first, _),) = (group.rollouts for group in group_rows(two_calls(), records, nano(), oldest=5))
    assert not first.stale
    records["s1"] = dataclasses.replace(records["s1"], step=1)
    ((first, _),) = (group.rollouts for group in group_rows(two_calls(), records, nano(), oldest=5))
    assert first.stale


def test_supervised_training_takes_any_text_and_trains_the_model_s_own_distribution() -> None:
    supervised = Algorithm(advantage=AdvantageSpec(kind="none"))
    assert sampling_distribution(drawn(temperature=0.0, logit_bias={"7": 1}), supervised) == SamplingSpec()


def test_a_teacher_s_server_knows_its_plain_distribution_only() -> None:
    teacher = TeacherSpec(kind="server", url="http://127.0.0.1:1/v1", model="t")
    taught = Algorithm(advantage=AdvantageSpec(kind="distillation"), teacher=teacher)
    assert sampling_distribution(drawn(), taught) == SamplingSpec()
    other = sampling_distribution(drawn(temperature=0.7), taught)
    assert isinstance(other, Untrainable) and other.reason == "teacher" and "temperature=0.7" in other.drawn
