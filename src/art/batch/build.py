"""Builds the batch of one training step from groups of rollouts and their ledger rows.

    check every row -> rewards -> advantages -> fates -> weights -> token tree, loss entries, sheet

A teacher behind HTTP is asked about the paths of the tree (`scored_paths`): every trained token once.

Letters: T = nodes of the token tree, E = loss entries, S = trained rollouts, P = nodes of one path.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from art.batch.advantages import BY_TRAINER, RESIDUE, Advantage, advantages, balanced
from art.batch.aggregation import Weighed, trains_without_advantage, weigh
from art.batch.algorithms.facts import reshaped_by_trainer
from art.batch.balance_sheet import CONTEXT, UNTRAINABLE, SheetAccount, check_balance
from art.batch.batch_types import (
    Batch,
    CandidateSets,
    GroupRow,
    IntArray,
    LossEntries,
    RolloutFate,
    SampleRow,
    TokenTree,
    TrainedSample,
)
from art.batch.checked_rollouts import CheckedRollout, check_rollouts
from art.batch.part_advantages import part_advantages
from art.batch.token_tree import build_tree
from art.batch.turn_advantages import TurnedRollout, returns_of, turn_advantages
from art.errors import ConfigurationError
from art.wire.algorithm import OF_TURNS, AdvantageSpec, Algorithm
from art.wire.jobs import IDENTICAL, TURN_RETURN
from art.wire.samples import split_candidates
from art.wire.training import PLAIN_SAMPLING, SamplingSpec


def loss_entries(
    samples: Sequence[SampleRow],
    paths: Sequence[IntArray],
    advantages: Sequence[Advantage],
    weights: Sequence[float] | None = None,
    *,
    sequences: Sequence[int],
    sampling: Sequence[int] | None = None,
    places: bool = False,
) -> LossEntries:
    """One entry per sampled token per sample. Everything is given per sample.

    `paths[i]`: the nodes of its prompt and completion. `advantages[i]`: one number, or one for each of its
    tokens. `weights[i]`: of each of its tokens, by default 1. `sequences[i]`: the number of its rollout.
    `sampling[i]`: that of its distribution. `places`: whether to say where in its completion each token is.
    `LossEntries` has an example.
    """
    lengths = [len(sample.completion_ids) for sample in samples]
    nodes = [path[len(path) - length :] for path, length in zip(paths, lengths, strict=True)]
    token_E = np.concatenate([np.zeros(0, np.int32), *nodes])
    logprobs = [
        np.full(length, np.nan, np.float32) if one.given else np.asarray(one.completion_logprobs, np.float32)
        for one, length in zip(samples, lengths, strict=True)
    ]
    each = [np.broadcast_to(value, length) for value, length in zip(advantages, lengths, strict=True)]
    candidates_E, candidates = _candidates(samples)
    return LossEntries(
        token_E=token_E,
        logprob_E=np.concatenate([np.zeros(0, np.float32), *logprobs]),
        advantage_E=np.concatenate([np.zeros(0), *each]).astype(np.float32),
        weight_E=np.repeat(np.asarray(weights or [1.0] * len(samples), np.float32), lengths),
        sequence_E=np.repeat(np.asarray(sequences, np.int32), lengths),
        sampling_E=np.repeat(np.asarray(sampling or [0] * len(samples), np.int32), lengths),
        place_E=np.concatenate([token_E[:0], *map(np.arange, lengths)]).astype(np.int32) if places else None,
        candidates_E=candidates_E,
        candidates=candidates,
    )


def _candidates(samples: Sequence[SampleRow]) -> tuple[IntArray | None, CandidateSets | None]:
    """The recorded sets, equal ones once: where a policy is sure, nearly all are."""
    if not any(sample.candidates for sample in samples):
        return None, None
    numbers: dict[bytes, int] = {}
    number_E: list[int] = []
    for sample in samples:
        if not sample.candidates:
            number_E += [-1] * len(sample.completion_ids)
            continue
        for ids in split_candidates(sample.candidates):
            number_E.append(numbers.setdefault(ids.tobytes(), len(numbers)) if len(ids) else -1)
    id_J = np.frombuffer(b"".join(numbers), np.int32)
    size_K = np.array([len(ids) // id_J.itemsize for ids in numbers], np.int32)
    sets = CandidateSets(end_K=np.cumsum(size_K, dtype=np.int32), id_J=id_J)
    return np.array(number_E, np.int32), sets


DEFAULT = Algorithm()
LARGEST = float(np.finfo(np.float32).max)
"""Advantages travel as float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Judged:
    """A rollout that may be trained, and what its reward says."""

    rollout: CheckedRollout
    advantage: Advantage
    trained: bool
    """False: it only counts in what the loss is divided by."""

    def of_samples(self) -> list[Advantage]:
        """The advantage of each sample; a number per token is cut at the samples' ends."""
        samples = self.rollout.samples
        if np.ndim(self.advantage) == 0:
            return [self.advantage] * len(samples)
        ends = np.cumsum([len(row.completion_ids) for row in samples])
        return list(np.split(np.asarray(self.advantage), ends[:-1]))


def build_batch(
    groups: Sequence[GroupRow],
    *,
    algorithm: Algorithm = DEFAULT,
    max_length: int | None = None,
) -> Batch:
    """Check every sample, decide every rollout's fate, and lay the trained ones out as a token tree.

    Samples that are `untrainable` get no loss entries: what they say is context where later prompts extend
    it, and a rollout that has no others is not trained. All rewards count in their group's statistics.

    A rollout with a sample of more than `max_length` ids is overlong, one whose last completion was cut may
    be left out as truncated, one of an old policy is stale: their rewards count in their group's statistics
    (long rollouts are the ones that become stale; a baseline without them would be that of the short ones),
    their tokens are not trained. The batch may be `empty`, when no rollout has an advantage.

    Two rollouts with rewards 1 and 0, and one that failed:

    >>> from art.batch.batch_types import RolloutRow, SampleRow
    >>> def rollout(name, reward, last):
    ...     sample = SampleRow(
    ...         sample_id=name, prompt_ids=[5, 6], completion_ids=[7, last], completion_logprobs=[-0.5, -1.0]
    ...     )
    ...     return RolloutRow(rollout=name, reward=reward, samples=[sample])
    >>> batch = build_batch([GroupRow(rollouts=[rollout("a", 1.0, 8), rollout("b", 0.0, 9)], failed=1)])
    >>> batch.tree.tokens_T.tolist(), batch.entries.token_E.tolist(), batch.normalizer
    ([5, 6, 7, 8, 9], [2, 3, 2, 4], 2.0)
    >>> batch.entries.weight_E.tolist()  # of each token: every rollout counts the same
    [0.5, 0.5, 0.5, 0.5]
    >>> {fate: (row.rollouts, row.tokens) for fate, row in batch.sheet.fates.items()}
    {'failed': (1, 0), 'trained': (2, 4)}

    Raises TokenMismatchError (a row whose ids and logprobs cannot be what was sampled, or that is
    named twice), ConfigurationError (a reward that is not finite or too large), UnbalancedSheetError.
    """
    _refuse_weights(groups, algorithm)
    account = SheetAccount()
    checked = list(check_rollouts(groups, algorithm, max_length))
    _open(account, groups, checked)
    rollouts = [rollouts_G for group, rollouts_G in zip(groups, checked, strict=True) if not group.discarded]
    judged = _judge(rollouts, algorithm, account)
    trained = [one for one in judged if one.trained]
    counting = judged if algorithm.zero_advantage == "count" else trained
    weighed = weigh(
        [one.rollout.trainable_tokens for one in counting],
        [one.rollout.group for one in counting],
        algorithm.aggregation,
        [groups[one.rollout.group].weight for one in counting],
    )
    weights = [weight for one, weight in zip(counting, weighed.weight_S.tolist(), strict=True) if one.trained]
    fates = _fates(checked, judged, algorithm)
    returns = [value for fates_G in fates for one in fates_G for value in one.turn_returns.values()]
    metrics = {**_reward_metrics(rollouts, algorithm), **_identical(judged, algorithm)}
    if returns:
        metrics[TURN_RETURN] = float(np.mean(returns))
    batch = _lay_out(trained, weights, weighed, account, algorithm, fates, metrics)
    if not reshaped_by_trainer(algorithm):
        return batch
    return replace(batch, rewards=_rewards(rollouts, [one.rollout for one in trained]))


def _refuse_weights(groups: Sequence[GroupRow], algorithm: Algorithm) -> None:
    """Raises ConfigurationError where the trainer weighs the kept rollouts anew, without groups' weights."""
    weight = next((one.weight for one in groups if one.weight != 1 and not one.discarded), None)
    if weight is not None and algorithm.masked == "drop":
        raise ConfigurationError(
            f"A group has weight {weight!r}, which masked='drop' does not take: use masked='count', or no "
            "weights."
        )


def _fates(
    checked: Sequence[Sequence[CheckedRollout]], judged: Sequence[_Judged], algorithm: Algorithm
) -> list[list[RolloutFate]]:
    """The fate of each rollout by itself; the account has their sums from other counts."""
    values = {id(one.rollout): one for one in judged}

    def fate_of(rollout: CheckedRollout) -> RolloutFate:
        one = values.get(id(rollout))
        if one is None:
            return RolloutFate(fate=rollout.fate or "unscored", tokens=rollout.tokens, advantage=None)
        is_known = not _shaped_by_trainer(algorithm)
        of_turns = algorithm.advantage.kind in OF_TURNS
        ids = [row.sample_id for row in rollout.samples]
        return RolloutFate(
            fate="trained" if one.trained else "zero_advantage",
            tokens=rollout.tokens,
            advantage=float(np.mean(one.advantage)) if is_known else None,
            turn_returns=_turn_returns(rollout, algorithm.advantage) if of_turns else {},
            turn_advantages=dict(zip(ids, map(_first, one.of_samples()), strict=True))
            if of_turns and is_known
            else {},
        )

    return [[fate_of(rollout) for rollout in rollouts_G] for rollouts_G in checked]


def _first(advantage: Advantage) -> float:
    return float(np.ravel(advantage)[:1].sum())


def _turn_returns(rollout: CheckedRollout, spec: AdvantageSpec) -> dict[str, float]:
    """Sample -> the return of its turn."""
    return_K = returns_of(TurnedRollout(states=(), ends=(), **_earned(rollout)), spec)
    ids = (row.sample_id for row in rollout.row.samples)
    return dict(zip(ids, return_K.tolist(), strict=True))


def _shaped_by_trainer(algorithm: Algorithm) -> bool:
    """Returns whether the advantages of the entries are not yet what is trained with."""
    return algorithm.advantage.kind in BY_TRAINER or reshaped_by_trainer(algorithm)


def _rewards(
    rollouts: Sequence[Sequence[CheckedRollout]], trained: Sequence[CheckedRollout]
) -> list[list[tuple[float, int]]]:
    """Returns the rewards for the trainer's advantages; a rollout has the number that its entries have."""
    numbers = {id(rollout): number for number, rollout in enumerate(trained)}
    return [
        [(one.reward, numbers.get(id(one), -1)) for one in rollouts_G if one.reward is not None]
        for rollouts_G in rollouts
    ]


def _open(
    account: SheetAccount, groups: Sequence[GroupRow], rollouts: Sequence[Sequence[CheckedRollout]]
) -> None:
    """Opens the account with what started; discarded groups end here."""
    for group, rollouts_G in zip(groups, rollouts, strict=True):
        account.start(rollouts=group.failed, tokens=0)
        if group.failed:
            account.book("failed", rollouts=group.failed, tokens=0)
        for rollout in rollouts_G:
            account.start(rollouts=1, tokens=rollout.tokens)
            if group.discarded and rollout.fate is not None:
                account.book(rollout.fate, rollouts=1, tokens=rollout.tokens)
            for row in rollout.row.samples:
                if row.fork_reason is not None:
                    account.fork(row.fork_reason)


def _judge(
    rollouts: Sequence[Sequence[CheckedRollout]], algorithm: Algorithm, account: SheetAccount
) -> list[_Judged]:
    """The rollouts that are trained or count; the others are booked."""
    values = _advantages(rollouts, algorithm)
    keep_all = trains_without_advantage(algorithm)
    if algorithm.masked == "drop":
        # As good as the mean of all may be better than the mean of the kept.
        keep_all |= any(value is not None and np.any(value) for values_G in values for value in values_G)
    judged = []
    for rollouts_G, values_G in zip(rollouts, values, strict=True):
        for rollout, value in zip(rollouts_G, values_G, strict=True):
            if rollout.fate is not None or value is None:
                account.book(rollout.fate or "unscored", rollouts=1, tokens=rollout.tokens)
                if rollout.fate == UNTRAINABLE:
                    _set_aside(account, rollout)
                continue
            if np.abs(value).max(initial=0.0) > LARGEST:
                raise ConfigurationError(
                    f"The advantage of rollout {rollout.row.rollout!r} is {value!r}, more than the "
                    f"trainer can hold; its reward is {rollout.reward!r}: scale the rewards."
                )
            trained = keep_all or bool(np.any(value))
            if not trained:
                account.book("zero_advantage", rollouts=1, tokens=rollout.tokens)
            judged.append(_Judged(rollout=rollout, advantage=value, trained=trained))
    return judged


def _advantages(
    rollouts: Sequence[Sequence[CheckedRollout]], algorithm: Algorithm
) -> Sequence[Sequence[Advantage | None]]:
    spec = algorithm.advantage
    if spec.kind in OF_TURNS:
        turned = [[_turns(one) for one in rollouts_G] for rollouts_G in rollouts]
        return [
            [_per_token(one, value_K, spec) for one, value_K in zip(rollouts_G, values_G, strict=True)]
            for rollouts_G, values_G in zip(rollouts, turn_advantages(turned, spec), strict=True)
        ]
    named = next((one.row.rollout for group in rollouts for one in group if one.row.turn_rewards), None)
    if named is not None:
        raise ConfigurationError(
            f"Rollout {named!r} has rewards of turns, which advantages {spec.kind!r} ignore: "
            f"choose an algorithm of turns ({', '.join(OF_TURNS)}), or add them to the rollout's reward."
        )
    if spec.kind == "gdpo":
        parts = [[_parts(one) for one in rollouts_G] for rollouts_G in rollouts]
        return part_advantages(parts, algorithm.reward_parts, spec)
    return advantages(
        [[one.reward for one in rollouts_G] for rollouts_G in rollouts],
        [[one.trainable_tokens for one in rollouts_G] for rollouts_G in rollouts],
        spec,
    )


def _parts(rollout: CheckedRollout) -> Mapping[str, float] | None:
    return None if rollout.reward is None else rollout.row.parts or None


def _per_token(
    rollout: CheckedRollout, value_K: npt.NDArray[np.float64] | None, spec: AdvantageSpec
) -> Advantage | None:
    """The advantages of turns, as one number for each token of the samples that can be trained."""
    if value_K is None:
        return None
    of_turn = dict(zip((row.sample_id for row in rollout.row.samples), value_K, strict=True))
    if spec.kind == "turn_gae":
        _move_to_trained(of_turn, rollout)
    pieces = [np.full(len(row.completion_ids), of_turn[row.sample_id]) for row in rollout.samples]
    return balanced(np.concatenate([np.zeros(0), *pieces]), spec.balance)


def _earned(rollout: CheckedRollout) -> dict[str, Any]:
    """The fields of a `TurnedRollout` that say who earned what. The rollout is scored."""
    row = rollout.row
    return {
        "reward": float(rollout.reward or 0.0) - math.fsum(row.turn_rewards.values()),
        "rewards_K": np.array([row.turn_rewards.get(sample.sample_id, 0.0) for sample in row.samples]),
    }


def _move_to_trained(reward_of_turn: dict[str, float], rollout: CheckedRollout) -> None:
    """Has the trained turn before earn what a turn without trained tokens earned: none follows from it."""
    trained = {row.sample_id for row in rollout.samples if len(row.completion_ids)}
    last = None
    for row in rollout.row.samples:
        if row.sample_id in trained:
            last = row.sample_id
        elif last is not None:
            reward_of_turn[last] += reward_of_turn[row.sample_id]


def _turns(rollout: CheckedRollout) -> TurnedRollout | None:
    row = rollout.row
    if rollout.reward is None:
        return None
    prompts = [np.asarray(sample.prompt_ids, np.int64).tobytes() for sample in row.samples]
    ends = [
        prompt + np.asarray(sample.completion_ids, np.int64).tobytes()
        for prompt, sample in zip(prompts, row.samples, strict=True)
    ]
    return TurnedRollout(
        **_earned(rollout),
        values_K=np.array([row.turn_values.get(sample.sample_id, 0.0) for sample in row.samples]),
        states=[
            row.turn_states.get(sample.sample_id, prompt)
            for sample, prompt in zip(row.samples, prompts, strict=True)
        ],
        ends=ends,
    )


def _identical(judged: Sequence[_Judged], algorithm: Algorithm) -> dict[str, float]:
    """Returns how many trained rollouts sampled the same tokens from the same prompts as others of their
    group, where the advantages of all of these add up to zero: one gradient, up and down by as much.
    """
    same: dict[Any, list[Advantage]] = {}
    for one in judged if not trains_without_advantage(algorithm) else ():
        key = [
            (ids.tobytes(), len(row.completion_ids), row.sampling, row.step)
            for row, ids in zip(one.rollout.samples, one.rollout.ids, strict=True)
        ]
        if one.trained:
            same.setdefault((one.rollout.group, *key), []).append(one.advantage)
    count = 0
    for values in same.values():
        largest = max(float(np.abs(value).max(initial=0.0)) for value in values)
        cancelled = np.abs(sum(values)).max(initial=0.0) <= RESIDUE * largest * len(values)
        count += len(values) if cancelled and largest else 0
    return {IDENTICAL: float(count)} if count else {}


def _set_aside(account: SheetAccount, rollout: CheckedRollout) -> int:
    """Say why each sample that is context is not trained; returns their tokens."""
    tokens = 0
    for row in rollout.row.samples:
        if row.untrainable is not None:
            account.set_aside(row.untrainable.reason, tokens=len(row.completion_ids))
            tokens += len(row.completion_ids)
    return tokens


def _lay_out(
    trained: Sequence[_Judged],
    weights: Sequence[float],
    weighed: Weighed,
    account: SheetAccount,
    algorithm: Algorithm,
    fates: list[list[RolloutFate]],
    metrics: Mapping[str, float],
) -> Batch:
    owners = [number for number, one in enumerate(trained) for _ in one.rollout.samples]
    samples = [row for one in trained for row in one.rollout.samples]
    tree, paths = build_tree([ids for one in trained for ids in one.rollout.ids])
    numbers: dict[SamplingSpec, int] = {}
    entries = loss_entries(
        samples,
        paths,
        [value for one in trained for value in one.of_samples()],
        [weights[owner] for owner in owners],
        sequences=owners,
        sampling=[numbers.setdefault(row.sampling, len(numbers)) for row in samples],
        places=algorithm.advantage.kind == "turn_gae" or any(spec.by_place for spec in numbers),
    )
    if trained:  # counted from what will be trained, not from what was meant to be
        account.book("trained", rollouts=len(trained), tokens=len(entries))
    context = sum(_set_aside(account, one.rollout) for one in trained)
    if context:
        account.book(CONTEXT, rollouts=0, tokens=context)
    return Batch(
        tree=tree,
        entries=entries,
        sheet=check_balance(account.sheet()),
        fates=fates,
        normalizer=weighed.normalizer,
        sampling=tuple(numbers) or (PLAIN_SAMPLING,),
        metrics={
            "data/raw_tokens": float(sum(len(ids) for one in trained for ids in one.rollout.ids)),
            "data/tree_tokens": float(len(tree)),
            "data/entries": float(len(entries)),
            "data/samples": float(len(samples)),
            "data/given_tokens": float(np.isnan(entries.logprob_E).sum()),
            **_advantage_metrics(entries, algorithm),
            **metrics,
        },
        samples=[
            TrainedSample(
                sample_id=row.sample_id,
                rollout=one.rollout.row.rollout,
                group=one.rollout.group,
                tokens=len(row.completion_ids),
            )
            for one in trained
            for row in one.rollout.samples
        ],
    )


def _advantage_metrics(entries: LossEntries, algorithm: Algorithm) -> dict[str, float]:
    if _shaped_by_trainer(algorithm):
        return {}
    return {"loss/advantage_abs": float(np.abs(entries.advantage_E).mean()) if len(entries) else 0.0}


def _reward_metrics(rollouts: Sequence[Sequence[CheckedRollout]], algorithm: Algorithm) -> dict[str, float]:
    """Returns how rewards are shaped; the program logs them as they are."""
    scored = [one for rollouts_G in rollouts for one in rollouts_G if one.reward is not None]
    found = {}
    if algorithm.overlong is not None:
        found["data/overlong_penalty_mean"] = float(np.mean([one.penalty for one in scored] or [0.0]))
    gamma = algorithm.advantage.gamma
    of_turns = algorithm.advantage.kind in OF_TURNS  # these have TURN_RETURN
    if scored and not of_turns and (algorithm.overlong is not None or gamma != 1):
        shaped = [(one.reward or 0.0) * gamma ** max(0, one.tokens - 1) for one in scored]
        found["data/shaped_reward_mean"] = float(np.mean(shaped))
    return found


def scored_paths(tree: TokenTree, entries: LossEntries) -> list[IntArray]:
    """The fewest paths of nodes from a root that pass every node with an entry. Turns that extend each
    other are one path.

    >>> from art.batch.build import build_batch
    >>> from art.batch.batch_types import GroupRow, RolloutRow, SampleRow
    >>> def turn(name, prompt, ids):
    ...     return SampleRow(
    ...         sample_id=name, prompt_ids=prompt, completion_ids=ids, completion_logprobs=[-1.0] * len(ids)
    ...     )
    >>> rollouts = [
    ...     RolloutRow(rollout="a", reward=1.0, samples=[turn("a1", [5], [6]), turn("a2", [5, 6, 7], [8])]),
    ...     RolloutRow(rollout="b", reward=0.0, samples=[turn("b1", [5], [9])]),
    ... ]
    >>> batch = build_batch([GroupRow(rollouts=rollouts)])
    >>> [batch.tree.tokens_T[path].tolist() for path in scored_paths(batch.tree, batch.entries)]
    [[5, 6, 7, 8], [5, 9]]
    """
    asked_T = np.zeros(len(tree), bool)
    asked_T[entries.token_E] = True
    asked = np.flatnonzero(asked_T)
    following = np.append(asked[1:], len(tree))
    index_T = np.arange(len(tree))
    starts = np.flatnonzero((tree.parent_T != index_T - 1) | (index_T == 0))
    return [_path(tree, starts, last) for last in asked[following >= tree.end_T[asked]].tolist()]


def _path(tree: TokenTree, starts: npt.NDArray[np.int64], last: int) -> IntArray:
    """The nodes from the root to `last`, run by run: within a run each node's parent is the one before it."""
    pieces, node = [], last
    while node >= 0:
        start = int(starts[np.searchsorted(starts, node, side="right") - 1])
        pieces.append(np.arange(start, node + 1, dtype=np.int32))
        node = int(tree.parent_T[start])
    return np.concatenate(pieces[::-1])


def with_teacher(batch: Batch, paths: Sequence[IntArray], logprobs: Sequence[Sequence[float]]) -> Batch:
    """The batch with the teacher's logprob of each entry.

    `logprobs`: one number for each node of each path but its first, which nothing predicts.
    """
    teacher_T = np.full(len(batch.tree), np.nan, np.float32)
    for path_P, logprobs_P in zip(paths, logprobs, strict=True):
        teacher_T[path_P[1:]] = logprobs_P
    return replace(batch, entries=replace(batch.entries, teacher_E=teacher_T[batch.entries.token_E]))
