"""Ledger records become the rows that training is built from, each checked to be the model's own.

`sampling_distribution` says which distribution a sample was drawn from, or why the trainer computes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import get_args

from pydantic import ValidationError

from art.batch.balance_sheet import UNTRAINABLE as ALL_CONTEXT
from art.batch.batch_types import GroupRow, RolloutRow, SampleRow, Untrainable
from art.errors import RequestError
from art.rendering.chat_renderer import ChatRenderer
from art.server.jobs.sft_job import assistant_rows
from art.server.ledger.schema import SampleRecord
from art.wire.algorithm import Algorithm
from art.wire.jobs import ONE_SEED_GROUPS, BalanceSheet, TrainGroup, TrainJobRequest, TrainTrajectory
from art.wire.samples import UNTRAINABLE
from art.wire.sampling import DISTRIBUTION, PARAMETERS
from art.wire.training import PLAIN_SAMPLING, MaskedBy, SamplingSpec

_SHAPES_NOTHING = frozenset(
    {
        *("max_tokens", "stop_string", "metadata", "ignore_eos"),
        *(name for name, one in PARAMETERS.items() if not one.shapes),
    }
)
_GREEDY = tuple((name, one.greedy) for name, one in PARAMETERS.items() if one.greedy is not None)


def sampling_distribution(record: SampleRecord, algorithm: Algorithm) -> SamplingSpec | Untrainable:
    """The distribution that the sample's logprobs are of; it is the one that is trained.

    A supervised algorithm trains the model's own, whatever drew the text. Untrainable: greedy sampling (it
    explores nothing: there is no distribution to improve), a constraint whose masks the trainer does not
    know, anything unknown, and a distribution other than the model's own where a teacher's server
    gives logprobs of its own.
    """
    if algorithm.advantage.kind == "none":
        return PLAIN_SAMPLING
    given = {name: value for name, value in record.sampling.items() if value is not None}
    for name, is_greedy in _GREEDY:
        if name in given and is_greedy(given[name]):
            return Untrainable(reason="greedy", drawn=f"{name} = {given[name]!r}")
    constraint, least = given.get("constraint"), given.get("min_tokens", 0)
    masked_by: MaskedBy = "builtin"
    if least and "stop_token_ids" not in given:  # a row of an older release
        return Untrainable(reason="unknown", drawn=f"min_tokens = {least}, without the ids that it forbade")
    if constraint is None:
        if not least:
            given.pop("stop_token_ids", None)
    elif constraint.get("by") not in get_args(MaskedBy):
        drawn = f"a {constraint.get('kind')} constraint by engine {constraint.get('by')!r}"
        return Untrainable(reason="constraint", drawn=drawn)
    else:
        given["constraint"] = {"kind": constraint["kind"], "text": constraint["text"]}
        masked_by = constraint["by"]
    for name, value in given.items():
        if name not in DISTRIBUTION and name not in _SHAPES_NOTHING:
            return Untrainable(reason="unknown", drawn=f"{name} = {value!r}")
    try:
        spec = SamplingSpec(
            **{name: given[name] for name in DISTRIBUTION if name in given}, masked_by=masked_by
        )
    except ValidationError as error:
        first = error.errors()[0]
        wrong = str(first["loc"][0]) if first["loc"] else "sampling"
        return Untrainable(reason="unknown", drawn=f"{wrong} = {given.get(wrong, given)!r}")
    if spec != PLAIN_SAMPLING and algorithm.teacher is not None and algorithm.teacher.kind == "server":
        return Untrainable(reason="teacher", drawn=repr(spec))
    return spec


def group_rows(
    request: TrainJobRequest,
    records: Mapping[str, SampleRecord],
    renderer: ChatRenderer,
    *,
    oldest: int = 0,
    removed: frozenset[str] = frozenset(),
) -> list[GroupRow]:
    """The request's groups with their ledger rows, and rows for what was given instead of sampled.

    records: rollouts with a sample that is not among them are damaged. oldest: those with a sample of an
    earlier step are stale, and so are those with a sample that was removed. Discarded groups come last.

    Raises RequestError for messages that the format cannot express.
    """
    return [
        GroupRow(
            failed=group.failed,
            discarded=number >= len(request.groups),
            replaced=group.replaced,
            weight=group.weight,
            rollouts=[
                _rollout(trajectory, records, request.algorithm, renderer, oldest, removed)
                for trajectory in group.trajectories
            ],
        )
        for number, group in enumerate([*request.groups, *request.discarded])
    ]


def refuse_untrainable(groups: Sequence[GroupRow], sheet: BalanceSheet) -> None:
    """Raise RequestError where nothing is trained because the samples can only be context."""
    if ALL_CONTEXT not in sheet.fates or {"trained", "zero_advantage"} & set(sheet.fates):
        return
    rollout, sample_id, why = next(_untrainable(groups))
    reasons = "; ".join(
        f"{row.samples} {reason} ({UNTRAINABLE.get(reason, reason)})" for reason, row in sheet.context.items()
    )
    raise RequestError(
        f"nothing can be trained: of {sheet.started.rollouts} rollouts {sheet.fates[ALL_CONTEXT].rollouts} "
        f"have no sample from a distribution that the trainer computes. Samples by reason: {reasons}. The "
        f"first is {sample_id!r} of rollout {rollout!r}, drawn with {why.drawn}",
        status=409,
        code="untrainable_sampling",
        param="groups",
    )


def _untrainable(groups: Sequence[GroupRow]) -> Iterator[tuple[str, str, Untrainable]]:
    for rollout in (one for group in groups if not group.discarded for one in group.rollouts):
        for row in rollout.samples:
            if row.untrainable is not None:
                yield rollout.rollout, row.sample_id, row.untrainable


def policy_ages(groups: Sequence[GroupRow], step: int) -> dict[str, float]:
    """Returns how many steps before `step` the samples were drawn, of rollouts that may be trained.

    >>> ids = {"prompt_ids": [1], "completion_ids": [2], "completion_logprobs": [-1.0]}
    >>> sample = SampleRow(sample_id="s", step=3, **ids)
    >>> policy_ages([GroupRow(rollouts=[RolloutRow(rollout="r", reward=1.0, samples=[sample])])], 5)
    {'offpolicy/steps_mean': 2.0, 'offpolicy/steps_max': 2.0}
    """
    fresh = (one for group in groups if not group.discarded for one in group.rollouts if not one.stale)
    rows = (row for one in fresh for row in one.samples if row.untrainable is None)
    ages = [float(step - row.step) for row in rows if row.step is not None]
    return {"offpolicy/steps_mean": fmean(ages), "offpolicy/steps_max": max(ages)} if ages else {}


def one_seed_groups(groups: Sequence[TrainGroup], records: Mapping[str, SampleRecord]) -> dict[str, float]:
    """Returns the number of groups whose rollouts all began with one reply because their requests had one
    seed, where there are any.
    """
    count = sum(
        _has_one_seed([one.samples[0] for one in group.trajectories if one.samples], records)
        for group in groups
    )
    return {ONE_SEED_GROUPS: float(count)} if count else {}


def _has_one_seed(firsts: Sequence[str], records: Mapping[str, SampleRecord]) -> bool:
    """firsts: the first sample of each rollout of a group."""
    drawn = [records[sample] for sample in firsts if sample in records]
    if len(drawn) < 2 or len(drawn) < len(firsts) or drawn[0].sampling.get("seed") is None:
        return False
    replies = {(one.sampling.get("seed"), bytes(one.prompt_ids), bytes(one.completion_ids)) for one in drawn}
    return len(replies) == 1


def judge_figures(groups: Sequence[TrainGroup]) -> dict[str, float]:
    """Returns the groups' figures about their judge: means over those that have them, named as in the
    program's log.

    >>> judge_figures([TrainGroup(trajectories=[], judge={"judge/agreement": value}) for value in (0.5, 1)])
    {'group_judge/agreement': 0.75}
    """
    names = dict.fromkeys(name for group in groups for name in group.judge)
    return {
        f"group_{name}": fmean(group.judge[name] for group in groups if name in group.judge) for name in names
    }


def _rollout(
    trajectory: TrainTrajectory,
    records: Mapping[str, SampleRecord],
    algorithm: Algorithm,
    renderer: ChatRenderer,
    oldest: int,
    removed: frozenset[str],
) -> RolloutRow:
    samples = _samples(trajectory, records, algorithm, renderer)
    drawn = (row for row in samples if row.untrainable is None and not row.given)
    return RolloutRow(
        rollout=trajectory.rollout,
        reward=trajectory.reward,
        unscored_reason=trajectory.unscored_reason,
        samples=samples,
        stale=any((row.step or 0) < oldest for row in drawn) or not removed.isdisjoint(trajectory.samples),
        damaged=any(sample not in records and sample not in removed for sample in trajectory.samples),
        turn_rewards=trajectory.turn_rewards,
        turn_values=trajectory.turn_values,
        turn_states=trajectory.turn_states,
        parts=trajectory.parts,
    )


def _samples(
    trajectory: TrainTrajectory,
    records: Mapping[str, SampleRecord],
    algorithm: Algorithm,
    renderer: ChatRenderer,
) -> list[SampleRow]:
    rollout = trajectory.rollout
    rows = {sample: _row(records[sample], algorithm) for sample in trajectory.samples if sample in records}
    if not trajectory.given or len(rows) < len(trajectory.samples):
        return [rows[sample] for sample in trajectory.samples if sample in rows]
    return [
        row
        for number, history in enumerate(trajectory.given)
        for row in assistant_rows(
            renderer,
            f"{rollout}.h{number}",
            history.messages,
            history.tools,
            about=f"rollout {rollout!r}",
            sampled={index: rows[sample] for index, sample in history.samples.items()},
        )
    ]


def check_origin(record: SampleRecord, rollout: str, model: str, *, removals: int = 0) -> None:
    """Raise RequestError unless the sample was drawn from this model.

    removals: models of this name that were removed before; their samples are another model's.
    """
    adapter, step = record.adapter, record.step
    problem = None
    if adapter is None or step is None:
        problem = f"was sampled by the base model {record.base_model!r}"
    elif adapter.rpartition("@")[0] != model:
        problem = f"was sampled by {adapter!r}"
    elif int(adapter.rpartition("@")[2].partition(".")[2] or 0) != removals:
        problem = "was sampled by an earlier model of this name"
    if problem is not None:
        raise RequestError(
            f"sample {record.sample_id!r} of rollout {rollout!r} cannot train {model}: it {problem}; "
            "train a model on its own samples. The same reply as a dict is context, or trained with "
            "allow_training_without_logprobs=True",
            status=409,
            code="sample_of_other_model",
            param="groups",
        )


def _row(record: SampleRecord, algorithm: Algorithm) -> SampleRow:
    drawn = sampling_distribution(record, algorithm)
    untrainable = drawn if isinstance(drawn, Untrainable) else None
    sampling = PLAIN_SAMPLING if isinstance(drawn, Untrainable) else drawn
    return SampleRow(
        sample_id=record.sample_id,
        prompt_ids=record.prompt_ids,
        completion_ids=record.completion_ids,
        completion_logprobs=record.completion_logprobs,
        rollout_id=record.rollout_id,
        parent_id=record.parent_id,
        step=record.step,
        fork_reason=record.fork_reason,
        sampling=sampling,
        untrainable=untrainable,
        truncated=record.finish_reason == "length",
        candidates=record.candidates if sampling.truncates else b"",
    )
