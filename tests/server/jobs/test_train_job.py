"""Which samples may train a model, from which distribution, and towards which other policy."""

from __future__ import annotations

import dataclasses
from array import array
from pathlib import Path

import numpy as np
import pytest
from ledger_rows import drawn, nano, record

from art.batch.batch_types import GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.batch.encode import decode_batch, encode_batch
from art.errors import RequestError
from art.server.checkpoints.checkpoints import Checkpoints
from art.server.checkpoints.reference_adapter import reference_folder
from art.server.jobs.learning_rate import rate_factor
from art.server.jobs.train_rows import check_origin, group_rows, judge_figures, one_seed_groups
from art.server.ledger.schema import SampleRecord
from art.wire.algorithm import Algorithm, KlSpec, TeacherSpec, UpdatesSpec
from art.wire.jobs import ONE_SEED_GROUPS, RateSpec, TrainGroup, TrainJobRequest
from art.wire.rollout_record import SheetRow
from art.wire.training import SamplingSpec, TrainRequest


@pytest.mark.parametrize("adapter", ["games/player@7", "games/player@7#1"])
def test_its_own_recent_samples_train_a_model(adapter: str) -> None:
    check_origin(record(adapter, 7), "r1", "games/player")


@pytest.mark.parametrize(
    ("adapter", "step", "problem"),
    [
        (None, None, "base model 'org/base'"),
        ("games/other@7", 7, "'games/other@7'"),
        ("home/player@7", 7, "'home/player@7'"),
    ],
)
def test_any_other_sample_is_refused_by_name(adapter: str | None, step: int | None, problem: str) -> None:
    with pytest.raises(RequestError, match=f"sample 's1' of rollout 'r1'.*{problem}") as refused:
        check_origin(record(adapter, step), "r1", "games/player")
    assert refused.value.code == "sample_of_other_model" and "allow_training_without_logprobs=True" in str(
        refused.value
    )


@pytest.mark.parametrize(
    ("adapter", "removals", "fits"),
    [
        ("games/player@7", 0, True),
        ("games/player@7#2", 0, True),
        ("games/player@7", 1, False),
        ("games/player@7#0.1", 1, True),
        ("games/player@7#0.1", 2, False),
        ("games/player@7#0.1", 0, False),
    ],
)
def test_samples_of_a_removed_model_are_another_models(adapter: str, removals: int, fits: bool) -> None:
    if fits:
        check_origin(record(adapter, 7), "r1", "games/player", removals=removals)
        return
    with pytest.raises(RequestError, match="an earlier model of this name"):
        check_origin(record(adapter, 7), "r1", "games/player", removals=removals)


def test_rows_keep_group_rollout_reward_distribution_and_truncation() -> None:
    cut = dataclasses.replace(drawn(top_p=0.5), sample_id="s2", finish_reason="length")
    request = TrainJobRequest(
        job_id="j",
        groups=[
            {
                "trajectories": [{"rollout": "r1", "reward": 1.0, "samples": ["s1", "s2"]}],
                "failed": 2,
            },
            {"trajectories": [{"rollout": "r2", "reward": None, "unscored_reason": "x", "samples": []}]},
        ],
        optimizer={"learning_rate": 1e-3},
    )
    one, two = group_rows(request, {"s1": drawn(), "s2": cut}, nano())
    assert one.failed == 2 and two.rollouts[0].unscored_reason == "x" and two.rollouts[0].reward is None
    first, second = one.rollouts[0].samples
    assert (first.truncated, second.truncated) == (False, True)
    assert (first.sampling, second.sampling) == (SamplingSpec(), SamplingSpec(top_p=0.5))


def test_a_rollout_with_a_damaged_sample_is_on_the_sheet_and_not_trained() -> None:
    other = dataclasses.replace(drawn(), sample_id="s3")
    trajectories = [
        {"rollout": "r1", "reward": 1.0, "samples": ["s1", "lost"]},
        {"rollout": "r2", "reward": 0.0, "samples": ["s3"]},
        {"rollout": "r3", "reward": 0.0, "samples": ["gone"], "given": [{"messages": [ASK], "samples": {}}]},
    ]
    request = TrainJobRequest(
        job_id="j", groups=[{"trajectories": trajectories}], optimizer={"learning_rate": 1e-3}
    )
    groups = group_rows(request, {"s1": drawn(), "s3": other}, nano())
    sheet = build_batch(groups, algorithm=request.algorithm).sheet
    assert sheet.fates["damaged"] == SheetRow(rollouts=2, tokens=1)
    assert sheet.fates["trained"] == SheetRow(rollouts=1, tokens=1), "the reward of the other counts"


@pytest.mark.parametrize(
    ("samples", "count"),
    [
        ({"s1": {"seed": 7}, "s2": {"seed": 7}}, 1),
        ({"s1": {"seed": 7}, "s2": {"seed": 8}}, 0),
        ({"s1": {"seed": 7}}, 0),
        ({"s1": {}, "s2": {}}, 0),  # the policy knows one reply only
    ],
)
def test_groups_whose_requests_had_one_seed_are_counted(samples: dict[str, dict], count: int) -> None:
    records = {name: dataclasses.replace(drawn(**own), sample_id=name) for name, own in samples.items()}
    trajectories = [{"rollout": name, "reward": 1.0, "samples": [name]} for name in samples]
    group = TrainGroup.model_validate({"trajectories": trajectories})
    assert one_seed_groups([group], records) == ({ONE_SEED_GROUPS: float(count)} if count else {})
    told = dataclasses.replace(records["s1"], completion_ids=array("i", [3, 4, 5]))
    assert not one_seed_groups([group], records | {"s1": told}) or len(samples) == 1


# What somebody wrote for the assistant


ASK, AGAIN = {"role": "user", "content": "One?"}, {"role": "user", "content": "Two?"}


def given_rows(messages: list[dict], samples: dict[int, str], records: dict[str, SampleRecord]) -> list:
    trajectory = {"rollout": "r1", "reward": 1.0, "samples": list(samples.values())}
    given = [{"messages": messages, "samples": samples}]
    request = TrainJobRequest(
        job_id="j",
        groups=[{"trajectories": [{**trajectory, "given": given}]}],
        optimizer={"learning_rate": 1e-3},
    )
    ((rollout,),) = (group.rollouts for group in group_rows(request, records, nano()))
    return list(rollout.samples)


def test_given_and_sampled_turns_extend_each_other() -> None:
    """Sampled, given, sampled again: each prompt begins with the ids of the turn before."""
    prompt = nano().render([ASK], None)
    said = nano().encode("odd ") + nano().encode("one<|im_end|>")  # not as the tokenizer would cut it
    sampled = dataclasses.replace(
        drawn(),
        prompt_ids=array("i", prompt),
        completion_ids=array("i", said),
        completion_logprobs=array("f", [-0.5] * len(said)),
    )
    written = {"role": "assistant", "content": "two"}
    first, second = given_rows(
        [ASK, {"role": "assistant", "content": "odd one"}, AGAIN, written], {1: "s1"}, {"s1": sampled}
    )
    assert (first.given, first.sample_id, list(first.completion_ids)) == (False, "s1", said)
    assert second.given and second.fork_reason is None
    assert list(second.prompt_ids) == nano().bridge(prompt, said, [AGAIN], None)
    assert nano().decode(second.completion_ids) == "two<|im_end|>"


def test_entries_of_given_turns_have_no_logprob_and_the_rollout_s_advantage() -> None:
    rows = given_rows([ASK, {"role": "assistant", "content": "yes"}], {}, {})
    other = given_rows([ASK, {"role": "assistant", "content": "no"}], {}, {})
    group = GroupRow(
        rollouts=[
            RolloutRow(rollout="a", reward=1.0, samples=rows),
            RolloutRow(rollout="b", reward=0.0, samples=[dataclasses.replace(other[0], sample_id="o")]),
        ]
    )
    batch = build_batch([group])
    assert np.isnan(batch.entries.logprob_E).all() and batch.metrics["data/given_tokens"] == len(
        batch.entries
    )
    tree, entries, _ = decode_batch(encode_batch(batch, train_request(batch.normalizer)))
    assert np.isnan(entries.logprob_E).all() and len(tree) == len(batch.tree)
    ends = np.cumsum([len(rows[0].completion_ids)])
    assert {np.sign(one) for one in np.split(entries.advantage_E, ends)[0].tolist()} == {1.0}


def train_request(normalizer: float) -> TrainRequest:
    return TrainRequest(model="m", step=0, optimizer={"learning_rate": 1e-3}, normalizer=normalizer)


# The other policy


def checkpoints(folder: Path, steps: tuple[int, ...] = (0, 3)) -> Checkpoints:
    for step in steps:
        (folder / f"{step:04d}").mkdir()
    return Checkpoints(folder)


def test_the_reference_is_a_step_of_the_model_or_its_base(tmp_path: Path) -> None:
    known = checkpoints(tmp_path)
    of_step = KlSpec(coefficient=0.1, reference="step", step=3)
    assert reference_folder(Algorithm(), known) is None
    assert reference_folder(Algorithm(kl=KlSpec(coefficient=0.1)), known) is None
    assert reference_folder(Algorithm(kl=of_step), known) == str(tmp_path / "0003")
    teacher = TeacherSpec(kind="step", step=0)
    assert reference_folder(Algorithm(teacher=teacher), known) == str(tmp_path / "0000")
    for lag, step in ((1, 2), (3, 0), (9, 0)):
        moving = KlSpec(coefficient=0.1, reference="step", lag=lag)
        (tmp_path / "0002").mkdir(exist_ok=True)
        assert reference_folder(Algorithm(kl=moving), known) == str(tmp_path / f"{step:04d}")
    for every, step in ((1, 3), (2, 2), (3, 3), (4, 0)):
        replaced = KlSpec(coefficient=0.1, reference="step", every=every)
        assert reference_folder(Algorithm(kl=replaced), known) == str(tmp_path / f"{step:04d}")
    average = KlSpec(coefficient=0.1, reference="average", mixup=0.5)
    assert reference_folder(Algorithm(kl=average), known) is None
    sampler = KlSpec(coefficient=0.1, reference="sampler")
    assert reference_folder(Algorithm(teacher=teacher, kl=sampler), known) == str(tmp_path / "0000")


def test_a_reference_that_is_gone_is_refused_with_the_known_steps(tmp_path: Path) -> None:
    missing = Algorithm(kl=KlSpec(coefficient=0.1, reference="step", step=2))
    with pytest.raises(RequestError, match=r"algorithm.kl.step = 2: .* its steps: \[0, 3\]"):
        reference_folder(missing, checkpoints(tmp_path))


def adapter(folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    return str(folder)


def test_a_reference_adapter_lies_in_its_project_or_among_the_references(tmp_path: Path) -> None:
    folder = tmp_path / "art" / "games" / "models" / "player" / "checkpoints"
    folder.mkdir(parents=True)
    known = Checkpoints(folder)
    mine = adapter(tmp_path / "art" / "games" / "models" / "other" / "checkpoints" / "0002")
    put = adapter(tmp_path / "art" / "server" / "references" / "ab12")
    foreign = adapter(tmp_path / "art" / "home" / "models" / "player" / "checkpoints" / "0002")
    (folder / "0009").symlink_to(foreign)
    for path in (mine, put):
        kl = KlSpec(coefficient=0.1, reference="adapter", path=path)
        assert reference_folder(Algorithm(kl=kl), known) == path
    for path in (foreign, "/etc", f"{mine}/../../../../../home", str(folder / "0009")):
        kl = KlSpec(coefficient=0.1, reference="adapter", path=path)
        with pytest.raises(RequestError, match=r"algorithm.kl.path = .* below its project") as refused:
            reference_folder(Algorithm(kl=kl), known)
        assert refused.value.code == "reference_not_allowed"
    empty = KlSpec(coefficient=0.1, reference="adapter", path=str(folder))
    with pytest.raises(RequestError, match=r"no adapter_config\.json"):
        reference_folder(Algorithm(kl=empty), known)


# How fast, and in how many updates


def test_the_rate_follows_the_batch() -> None:
    rollouts = [
        RolloutRow(rollout=f"r{n}", reward=float(n % 2), samples=[sample_row(f"s{n}")]) for n in range(4)
    ]
    groups = [GroupRow(rollouts=rollouts), GroupRow(rollouts=[], failed=2)]
    batch = build_batch(groups)
    assert rate_factor(RateSpec(), groups, batch) == 1.0
    assert rate_factor(RateSpec(rollouts_power=0.5), groups, batch) == 2.0
    assert rate_factor(RateSpec(rollouts_power=-1.0, by_reward_std=True), groups, batch) == 0.125
    level = [GroupRow(rollouts=[dataclasses.replace(one, reward=1.0) for one in rollouts])]
    with pytest.raises(RequestError, match=r"multiplied by 0\.0"):
        rate_factor(RateSpec(by_reward_std=True), level, batch)


def sample_row(name: str) -> SampleRow:
    """Each name has a last token of its own."""
    ids = [2, 3 + int(name[1:])]
    return SampleRow(sample_id=name, prompt_ids=[1], completion_ids=ids, completion_logprobs=[-0.5, -0.5])


@pytest.mark.parametrize(
    ("sequences", "trained", "minibatches"), [(None, 9, 1), (4, 8, 2), (4, 9, 3), (99, 9, 1)]
)
def test_an_update_for_every_few_sequences(sequences: int | None, trained: int, minibatches: int) -> None:
    spec = UpdatesSpec(sequences=sequences, epochs=2)
    assert spec.of_batch(trained) == UpdatesSpec(minibatches=minibatches, epochs=2)
    with pytest.raises(ValueError, match="give one of the two"):
        UpdatesSpec(sequences=4, minibatches=2)


def test_figures_of_a_judge_are_means_over_the_groups_that_have_them() -> None:
    told = [{"judge/alarm": 0.0}, {"judge/alarm": 1.0, "judge/agreement": 0.5}, {}]
    groups = [TrainGroup(trajectories=[], judge=figures) for figures in told]
    assert judge_figures(groups) == {"group_judge/alarm": 0.5, "group_judge/agreement": 0.5}
    assert judge_figures([]) == {}
