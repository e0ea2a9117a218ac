"""Ledger records -> the rows that training is built from.

Each is checked to be the model's own, and drawn from a distribution that the trainer can compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Any, NoReturn

from pydantic import ValidationError

from art.errors import RequestError
from art.rendering.chat import ChatRenderer
from art.samples.types import GroupRow, RolloutRow, SampleRow
from art.server.jobs.sft_rows import assistant_rows
from art.server.ledger.schema import SampleRecord
from art.wire.algorithm import Algorithm
from art.wire.jobs import TrainGroup, TrainJobRequest, TrainTrajectory
from art.wire.training import PLAIN_SAMPLING, SamplingSpec

_NEUTRAL: Mapping[str, Any] = MappingProxyType(
    {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}
)
"""What changes a distribution from token to token, and the value that does not."""
_SHAPES_NOTHING = frozenset({"max_tokens", "seed", "stop", "stop_string", "metadata"})

_SAME_MASKS = "builtin"
"""The engine that forbids the same ids under a constraint as the trainer."""
_COLDEST = 1e-6
_GREEDY: Mapping[str, Callable[[float], bool]] = MappingProxyType(
    {
        "temperature": lambda value: value < _COLDEST,
        "top_k": lambda value: value == 1,
        "min_p": lambda value: value >= 1,
    }
)


def group_rows(
    request: TrainJobRequest, records: Mapping[str, SampleRecord], renderer: ChatRenderer, *, oldest: int = 0
) -> list[GroupRow]:
    """The request's groups with their ledger rows, and rows for what was given instead of sampled.

    oldest: rollouts with a sample of an earlier step are stale. Discarded groups come last.

    Raises RequestError for an untrainable sample, and for messages that the format cannot express.
    """
    return [
        GroupRow(
            failed=group.failed,
            discarded=number >= len(request.groups),
            rollouts=[
                RolloutRow(
                    rollout=trajectory.rollout,
                    reward=trajectory.reward,
                    unscored_reason=trajectory.unscored_reason,
                    samples=_samples(trajectory, records, request.algorithm, renderer),
                    stale=any((records[sample].step or 0) < oldest for sample in trajectory.samples),
                )
                for trajectory in group.trajectories
            ],
        )
        for number, group in enumerate([*request.groups, *request.discarded])
    ]


def policy_ages(groups: Sequence[GroupRow], step: int) -> dict[str, float]:
    """How many steps before `step` the samples were drawn, of rollouts that may be trained.

    >>> ids = {"prompt_ids": [1], "completion_ids": [2], "completion_logprobs": [-1.0]}
    >>> sample = SampleRow(sample_id="s", step=3, **ids)
    >>> policy_ages([GroupRow(rollouts=[RolloutRow(rollout="r", reward=1.0, samples=[sample])])], 5)
    {'offpolicy/steps_mean': 2.0, 'offpolicy/steps_max': 2.0}
    """
    kept = (one for group in groups if not group.discarded for one in group.rollouts if not one.stale)
    ages = [float(step - row.step) for one in kept for row in one.samples if row.step is not None]
    return {"offpolicy/steps_mean": fmean(ages), "offpolicy/steps_max": max(ages)} if ages else {}


def judge_figures(groups: Sequence[TrainGroup]) -> dict[str, float]:
    """What the groups say of their judge: means over those that say it, named as in the program's log.

    >>> judge_figures([TrainGroup(trajectories=[], judge={"judge/agreement": value}) for value in (0.5, 1)])
    {'group_judge/agreement': 0.75}
    """
    names = dict.fromkeys(name for group in groups for name in group.judge)
    return {
        f"group_{name}": fmean(group.judge[name] for group in groups if name in group.judge) for name in names
    }


def _samples(
    trajectory: TrainTrajectory,
    records: Mapping[str, SampleRecord],
    algorithm: Algorithm,
    renderer: ChatRenderer,
) -> list[SampleRow]:
    rollout = trajectory.rollout
    rows = {sample: _row(records[sample], rollout, algorithm) for sample in trajectory.samples}
    if not trajectory.given:
        return [rows[sample] for sample in trajectory.samples]
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


def sampled_from(record: SampleRecord, rollout: str, algorithm: Algorithm) -> SamplingSpec:
    """The distribution that the sample was drawn from: its logprobs are recorded, and it is trained.

    A supervised algorithm trains the model's own, whatever drew the text. Raises RequestError for greedy
    sampling (it explores nothing: there is no distribution to improve), for penalties (the trainer does not
    compute them), for a constraint under another engine than the builtin one, for anything unknown, and for
    a distribution other than the model's own where a teacher's server gives logprobs of its own.
    """
    if algorithm.advantage.kind == "none":
        return PLAIN_SAMPLING
    given = {name: value for name, value in record.sampling.items() if value is not None}
    constraint = given.get("constraint")
    if constraint is None:
        given.pop("stop_token_ids", None)
    else:
        given["constraint"] = _told_alike(record, rollout, constraint)
    for name, value in given.items():
        known = name in SamplingSpec.model_fields or name in _SHAPES_NOTHING
        if not known and (name not in _NEUTRAL or value != _NEUTRAL[name]):
            _refuse(record, rollout, f"{name} = {value!r}", "the trainer does not compute this distribution")
    for name, is_greedy in _GREEDY.items():
        if name in given and is_greedy(given[name]):
            _refuse(record, rollout, f"{name} = {given[name]!r}", "a greedy choice leaves nothing to compare")
    try:
        spec = SamplingSpec(**{name: given[name] for name in SamplingSpec.model_fields if name in given})
    except ValidationError as error:
        first = error.errors()[0]
        _refuse(record, rollout, f"{first['loc'][0]} = {first['input']!r}", first["msg"].lower())
    if spec != PLAIN_SAMPLING and algorithm.teacher is not None and algorithm.teacher.kind == "server":
        _refuse(record, rollout, repr(spec), "a teacher's server gives logprobs of its own distribution only")
    return spec


def _told_alike(record: SampleRecord, rollout: str, constraint: Any) -> dict[str, Any]:
    """The constraint as the trainer follows it: with the same masks as the engine that drew under it."""
    engine = constraint.get("by")
    if engine != _SAME_MASKS:
        _refuse(
            record,
            rollout,
            f"a {constraint.get('kind')} constraint by engine {engine!r}",
            f"the trainer computes the masks of engine {_SAME_MASKS!r} only",
        )
    return {"kind": constraint["kind"], "text": constraint["text"]}


def _refuse(record: SampleRecord, rollout: str, drawn: str, why: str) -> NoReturn:
    raise RequestError(
        f"sample {record.sample_id!r} of rollout {rollout!r} cannot be trained: it was drawn with {drawn}, "
        f"and {why}; sample rollouts for training with temperature 1 and no penalties (a temperature above "
        "0, top_k above 1, top_p and min_p below 1 are corrected for)",
        status=409,
        code="untrainable_sampling",
        param="groups",
    )


def _row(record: SampleRecord, rollout: str, algorithm: Algorithm) -> SampleRow:
    return SampleRow(
        sample_id=record.sample_id,
        prompt_ids=record.prompt_ids,
        completion_ids=record.completion_ids,
        completion_logprobs=record.completion_logprobs,
        rollout_id=record.rollout_id,
        parent_id=record.parent_id,
        step=record.step,
        fork_reason=record.fork_reason,
        sampling=sampled_from(record, rollout, algorithm),
        truncated=record.finish_reason == "length",
    )
