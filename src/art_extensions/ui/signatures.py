"""The signatures of broken runs: how each is seen in the numbers of a model's history, in one table.

Functions of a `RunTable`, which is read from `history.jsonl`; only where something is found, records and logs
of its steps are opened. Each limit has its source. Scenarios that are too hard or too easy show as groups
without a signal.
"""

from __future__ import annotations

import json
import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType
from typing import Any

from art.errors import ARTError
from art.tracking.folders import ModelPaths
from art.tracking.names import GRADIENT_STEPS
from art.tracking.step_record import read_rollouts
from art.wire.jobs import TURN_RETURN
from art.wire.rollout_record import RolloutRecord
from art_extensions.ui.run_table import ENDS, WINDOW, Found, RunTable, growth, slope, worst
from art_extensions.ui.step_numbers import all_names

STAGES = ("scenario", "rollout", "reward", "group", "gradient", "promotion")
RANDOM_NATS, LONG_FLAT = 2.0, 30
"""Entropy of a token above which a text is nearly random; steps after which a reward should have risen."""
FEW_SCENARIOS, MOST_LOGS = 4, 20
"""Fewer scenarios may well be alike; logs of trajectories that are opened at most."""


def pushed(one: RolloutRecord) -> bool:
    """Returns whether the gradient has a part of the rollout."""
    return bool(one.advantage)


def push(one: RolloutRecord) -> float:
    """Returns how strongly the gradient pushes the rollout, either way."""
    return abs(one.advantage or 0.0)


def same_input(table: RunTable) -> Found | None:
    share, steps = worst(table.column("train/same_input_rate"))
    named = max(table.column("data/cum/num_unique_scenarios").values(), default=0.0)
    # Without ids nobody knows whether one scenario is meant: a run that learns from it is not broken.
    if share <= 0.8 or empty_prompt(table) or (named < FEW_SCENARIOS and table.gain() > 0):
        return None
    count = f", although the run has {named:.0f} scenario ids" if named >= FEW_SCENARIOS else ""
    return Found(
        f"{share:.0%} of the groups show the model the same messages{count}", steps, lambda one: True
    )


def empty_prompt(table: RunTable) -> Found | None:
    share, steps = worst(table.column("train/empty_prompt_rate"))
    words = f"{share:.0%} of the rollouts have no text before the first reply"
    return Found(words, steps, lambda one: True) if share > 0.05 else None


def overlap(table: RunTable) -> Found | None:
    if not table.val or not table.is_complete:
        return None
    last = max(table.val)
    held_out = scenario_ids(table.files, "val", last)
    if len(held_out) < FEW_SCENARIOS:
        return None
    steps = [*table.train][-MOST_LOGS:]
    trained = set[str]().union(*(scenario_ids(table.files, "train", step) for step in steps))
    seen = len(held_out & trained) / len(held_out)
    words = f"{seen:.0%} of the {len(held_out)} scenarios of the validation are trained on"
    return Found(words, (last,), lambda one: one.scenario in held_out) if seen > 0.5 else None


def scenario_ids(files: ModelPaths, split: str, step: int) -> set[str]:
    """Returns the `metadata["scenario_id"]` of the rollouts that a split logged for a step."""
    from art.tracking.trajectory_log import LoggedSteps, has_polars, lines_of_step, read_stored

    log = LoggedSteps(files.trajectories).path(split, step)
    facts: list[dict[str, Any]] = []
    with suppress(ARTError, OSError, ValueError):  # a log that is gone or damaged names none
        if log.exists() and has_polars():
            rows = read_stored(log, ("metadata", "group_metadata")).frame.iter_rows()
            facts += [json.loads(text) for row in rows for text in row if text]
        if (lines := log.with_suffix(".jsonl")).exists():
            for group in lines_of_step(lines):
                facts += [group.metadata, *(one.metadata for one in group)]
    return {str(one["scenario_id"]) for one in facts if one.get("scenario_id") is not None}


def failing(table: RunTable) -> Found | None:
    share, steps = worst(table.column("train/exception_rate"))
    if share <= 0.05:
        return None
    kinds = Counter(
        f"{one.failure.type}: {one.failure.message}"[:200]
        for step in steps
        for one in read_rollouts(table.files.path, step)
        if one.failure
    )
    quote = kinds.most_common(1)[0][0] if kinds else None
    words = f"{share:.0%} of the rollouts failed"
    return Found(words, steps, lambda one: one.failure is not None, quote=quote)


def malformed(table: RunTable) -> Found | None:
    share, steps = worst(table.column("train/malformed_call_rate"))
    if share <= 0.1:
        return None
    words = f"{share:.0%} of the replies have a malformed tool call"
    return Found(words, steps, lambda one: one.reward is not None, lambda one: -(one.reward or 0.0))


def noise(table: RunTable) -> Found | None:
    rates = table.column("train/noise_rate")
    share, steps = worst(rates)
    if share <= 0.1 or (table.gain() > 0 and fmean([*rates.values()][-ENDS:]) <= 0.1):
        return None
    words = (
        f"{share:.0%} of the replies have special tokens or bytes that are no text in them: they are noise"
    )
    return Found(words, steps, lambda one: True, lambda one: one.tokens)


def truncated(table: RunTable) -> Found | None:
    rates = table.column("train/truncated_rate")
    share, steps = worst(rates)
    if share <= 0.1 or (table.gain() > 0 and growth(rates) < 0.8):  # it learns to end
        return None
    random = fmean([*table.column("loss/entropy").values()] or [0.0]) > RANDOM_NATS
    change = None
    if noise(table):
        change = "Leave max_tokens: noise fills any limit. Mend the replies first."
    elif random:
        change = (
            "Leave max_tokens: the replies are nearly random. Sample at temperature 0.7, or use SFT first."
        )
    words = f"{share:.0%} of the rollouts end at the limit of tokens"
    return Found(words, steps, lambda one: one.truncated, change=change)


def unscored(table: RunTable) -> Found | None:
    share, steps = worst({step: row.get("train/unscored_rate", 0.0) for step, row in table.train.items()})
    words = f"{share:.0%} of the rollouts have no score"
    return Found(words, steps, lambda one: one.unscored_reason is not None) if share > 0.05 else None


def judge_alarm(table: RunTable) -> Found | None:
    names = {name for name in all_names(table.train.values()) if "group_judge/alarm_" in name}
    rang = [(worst(table.column(name)), name.rpartition("alarm_")[2]) for name in sorted(names)]
    (share, steps), check = max(rang, default=((0.0, ()), ""))
    if share <= 0.5:
        return None
    words = f"the judge's check {check!r} rang in {share:.0%} of the groups"
    return Found(words, steps, lambda one: one.judge is not None, lambda one: one.reward or 0.0)


def unpaid_turns(table: RunTable) -> Found | None:
    share, steps = worst(table.column("train/turn_reward_zero_rate"))
    if share <= 0.95 or table.gain() > 0:
        return None
    words = f"{share:.0%} of the rollouts whose turns are rewarded give 0 to all of them"
    return Found(words, steps, lambda one: bool(one.turn_rewards) and not any(one.turn_rewards))


def one_turn(table: RunTable) -> Found | None:
    share, steps = worst(table.column("train/turn_reward_top_share"))
    if share <= 0.9 or table.gain() > 0:
        return None
    words = (
        f"one turn of a rollout earns {share:.0%} of what its turns earn, on average, and the reward is flat"
    )
    return Found(words, steps, lambda one: any(one.turn_rewards), _top_share)


def _top_share(one: RolloutRecord) -> float:
    sizes = [abs(reward or 0.0) for reward in one.turn_rewards]
    return max(sizes, default=0.0) / (sum(sizes) or 1.0)


def ignored_turns(table: RunTable) -> Found | None:
    steps = tuple(
        step
        for step, row in table.train.items()
        if row.get("train/turn_rewarded_rate") and row.get(GRADIENT_STEPS) and TURN_RETURN not in row
    )
    words = (
        f"turns are rewarded, and {len(steps)} steps trained with an algorithm that looks at rollouts alone"
    )
    return Found(words, steps, lambda one: bool(one.turn_rewards)) if steps else None


def length_hacking(table: RunTable) -> Found | None:
    correlation, steps = worst(table.column("train/reward_length_correlation"))
    grown = growth(table.column("train/completion_tokens_p50"))
    if correlation <= 0.5 or grown < 1.5:
        return None
    words = f"reward and length correlate at {correlation:.2f}, and replies grew {grown:.1f} times"
    return Found(words, steps, lambda one: one.tokens > 0, lambda one: one.tokens)


def reward_hacking(table: RunTable) -> Found | None:
    val = {step: row["val/reward"] for step, row in table.val.items()}
    up, up_error = slope(table.column("train/reward"), table.column("train/reward_sem"))
    down, down_error = slope(val, {s: row.get("val/reward_sem", 0.0) for s, row in table.val.items()})
    if up < 1.96 * up_error or down > -1.96 * down_error:
        return None
    words = f"train/reward rises by {up:.3f} a step and val/reward falls by {-down:.3f}, both beyond chance"
    return Found(words, tuple(val), lambda one: one.reward is not None, lambda one: one.reward or 0.0)


def no_signal(table: RunTable) -> Found | None:
    given = table.share("data/step_num_groups_trainable", "data/step_num_groups_submitted")
    share, steps = worst({step: 1 - part for step, part in given.items()})
    if share <= 0.5 or table.gain(steps) > 0:  # a solved task has no signal left
        return None
    good, bad = (
        fmean(table.train[s].get(f"train/all_{x}_groups", 0.0) for s in steps) for x in ("good", "bad")
    )
    change = None
    if bad > 0.5:
        change = "Use easier scenarios, SFT first, or a reward that pays for partial success."
    elif good > 0.5:
        change = "Use harder scenarios, or a reward that tells good rollouts apart."
    which = "every group" if share > 0.995 else f"{share:.0%} of the groups"
    words = f"in {which} all rollouts got the same reward, so there is no gradient"
    if good or bad:
        words += f" ({good:.0%} of all groups at the highest reward, {bad:.0%} at the lowest)"
    if len(row := longest_row(given, lambda part: part == 0)) >= ENDS:
        words += f". {len(row)} steps in a row trained nothing: their checkpoints are all the same"
    return Found(words, steps, lambda one: one.fate == "zero_advantage", change=change)


def longest_row(values: Mapping[int, float], holds: Callable[[float], bool]) -> tuple[int, ...]:
    """Returns the longest row of steps that follow each other and whose value holds."""
    best: list[int] = []
    now: list[int] = []
    for step, value in values.items():
        now = [*now, step] if holds(value) else []
        best = max(best, now, key=len)
    return tuple(best)


def untrained(table: RunTable) -> Found | None:
    steps = longest_row(table.column("data/step_num_gradient_steps"), lambda count: count == 0)
    if len(steps) < ENDS or no_signal(table) or table.gain(steps) > 0:
        return None
    words = f"{len(steps)} steps in a row trained nothing: their checkpoints are all the same"
    return Found(words, steps, lambda one: one.fate not in ("trained", "context"))


def stale(table: RunTable) -> Found | None:
    started = "data/sheet/started_rollouts"
    shares = {
        kind: worst(table.share(f"data/sheet/{kind}_rollouts", started)) for kind in ("stale", "untrainable")
    }
    kind, (share, steps) = max(shares.items(), key=lambda item: item[1][0])
    if share > 0.2:
        return Found(f"{share:.0%} of the rollouts are {kind}", steps, lambda one: one.fate == kind)
    lag, steps = worst(table.column("offpolicy/steps_max"))
    if lag <= 8:
        return None
    words = f"samples are up to {lag:.0f} steps old"
    return Found(
        words, steps, lambda one: bool(one.policy_steps), lambda one: -(one.policy_steps or (0, 0))[0]
    )


def mismatch(table: RunTable) -> Found | None:
    fresh = {s for s, row in table.train.items() if not row.get("offpolicy/steps_max")}
    for name, limit in (("loss/mismatch_k3", 1e-3), ("loss/logprob_difference_mean", 0.03)):
        value, steps = worst({s: v for s, v in table.column(name).items() if s in fresh})
        if value > limit:
            return Found(f"{name} is {value:.2g} on samples of the newest policy, above {limit:g}", steps)
    return None


def blow_up(table: RunTable) -> Found | None:
    share, steps = worst(table.column("loss/clipped_share"))
    if share > 0.3:
        return Found(f"the loss clips {share:.0%} of the tokens", steps, pushed, push)
    kl, known = growth(table.column("loss/kl_policy_ref")), tuple(table.column("loss/kl_policy_ref"))
    if kl > 3 and table.gain() <= 0 and table.train[known[-1]]["loss/kl_policy_ref"] > 0.05:
        words = f"the KL from the reference grew {kl:.1f} times and the reward did not"
        return Found(words, known[-ENDS:], pushed, push)
    return None


def gradient(table: RunTable) -> Found | None:
    trained = table.column("data/step_num_gradient_steps")
    norms = {s: v for s, v in table.column("loss/grad_norm").items() if trained.get(s, 1.0) > 0}
    if zero := tuple(step for step, norm in norms.items() if norm < 1e-8):
        return Found(f"the gradient of {len(zero)} steps is 0 although they trained", zero)
    steps = [*norms]
    ordered = sorted(norms[step] for step in steps[: ENDS - 1])
    for place in range(ENDS, len(steps) - ENDS + 1):  # a single step after it may fall by chance
        insort(ordered, norms[steps[place - 1]])
        usual = ordered[len(ordered) // 2]
        before, after = steps[max(0, place - WINDOW) : place], steps[place : place + WINDOW]
        norm = norms[steps[place]]
        # A single peak is clipped, and healthy runs have some: it is a fault where the reward falls after it.
        if norm > max(1.0, 10 * usual) and table.rise(after, before) > 0:
            words = (
                f"the gradient's norm is {norm:.2f}, {norm / usual:.0f} times the usual, and the reward fell"
            )
            return Found(words, (steps[place],), pushed, push)
    return None


def divergence(table: RunTable) -> Found | None:
    given = table.share("data/step_num_groups_trainable", "data/step_num_groups_submitted")
    steps = [step for step in given if "train/reward" in table.train[step]]
    for place in range(1, len(steps) - ENDS + 1):
        before, after = steps[max(0, place - WINDOW) : place], steps[place : place + ENDS]
        dead = fmean(given[step] for step in after) <= 0.2 and fmean(given[step] for step in before) > 0.2
        if dead and table.rise(after, before) > 0:
            high, low = (
                fmean(table.train[step]["train/reward"] for step in some) for some in (before, after)
            )
            words = f"the reward fell from {high:.3g} to {low:.3g}, and then few groups had a signal"
            return Found(words, tuple(after), lambda one: True, lambda one: -(one.reward or 0.0))
    return None


def collapse(table: RunTable) -> Found | None:
    entropy = table.column("loss/entropy")
    steps = [*entropy]
    early = steps[ENDS : max(WINDOW, math.ceil(len(steps) / 5)) + 1]
    first = fmean([entropy[step] for step in steps[:ENDS]] or [0.0])
    low = tuple(step for step in early if entropy[step] < 0.3 * first)
    if not low or len(steps) < 2 * WINDOW or table.gain() > 0:
        return None
    words = f"the entropy fell from {first:.3f} to {entropy[low[0]]:.3f} and the reward is flat"
    return Found(words, low, pushed, push)


def below_best(table: RunTable, steps: Sequence[int]) -> str | None:
    """Returns how far the reward of these steps is below the best that a rollout earned; None: it is near."""
    highest = max(table.column("train/reward_max").values(), default=None)
    rewards = [row["train/reward"] for step in steps if "train/reward" in (row := table.train[step])]
    if highest is None or not rewards or highest - fmean(rewards) <= 0.1 * abs(highest):
        return None
    return f"{fmean(rewards):.3g}, where single rollouts earned {highest:.3g}"


def one_answer(table: RunTable) -> Found | None:
    same = table.column("train/same_reply_rate")
    steps = tuple(same)[-WINDOW:]
    if len(steps) < WINDOW or same_input(table) or fmean(same[step] for step in steps) <= 0.95:
        return None
    if (apart := below_best(table, steps)) is None:  # the best answer may well be one
        return None
    words = (
        f"{fmean(same[step] for step in steps):.0%} of the replies are the same one, at a reward of {apart}"
    )
    return Found(words, steps, lambda one: one.reward is not None, lambda one: -(one.reward or 0.0))


def plateau(table: RunTable) -> Found | None:
    steps = tuple(rewards := table.column("train/reward"))
    if len(steps) < LONG_FLAT or (apart := below_best(table, steps[-ENDS:])) is None:
        return None
    best = worst({step: rewards[step] for step in steps[-LONG_FLAT:]})[1]
    if table.gain() > 0 or table.gain(best) > 0:  # a reward that fell a few steps ago had risen
        return None
    words = f"the reward has not risen in {len(steps)} steps: it is {apart}"
    return Found(words, steps, pushed, push)


def slow(table: RunTable) -> Found | None:
    rates, literature = table.column("loss/learning_rate"), table.column("loss/learning_rate_by_size")
    steps = tuple(step for step, rate in rates.items() if rate * 10 < literature.get(step, 0.0))
    if len(table.train) < 2 * WINDOW or len(steps) <= len(table.train) / 2 or table.gain() > 0:
        return None
    usual = literature[steps[0]]
    return Found(
        f"the learning rate {rates[steps[0]]:.1e} is below a tenth of {usual:.1e}, the size's usual", steps
    )


def fell(table: RunTable) -> Found | None:
    known = {s: row for s, row in table.val.items() if "val/reward_sem" in row}
    if len(known) < 2:
        return None
    best, last = max(known, key=lambda step: known[step]["val/reward"]), max(known)
    noise = math.hypot(known[best]["val/reward_sem"], known[last]["val/reward_sem"])
    lost = known[best]["val/reward"] - known[last]["val/reward"]
    if lost <= max(2 * noise, 1e-9):
        return None
    change = f"Fork from step {best}, the best one, and lower the learning rate or stop earlier."
    return Found(
        f"val/reward was {lost:.3f} higher at step {best} than at the end", (best, last), change=change
    )


def idle(table: RunTable) -> Found | None:
    share, steps = worst(table.share("throughput/step_trainer_idle_s", "time/step_wall_s"))
    if share <= 0.5:
        return None
    words = f"the trainer waits {share:.0%} of the time for rollouts"
    return Found(words, steps, lambda one: one.seconds is not None, lambda one: one.seconds or 0.0)


@dataclass(frozen=True)
class Signature:
    """A way in which runs break. `limit` says when it is reported, `source` where the limit comes from."""

    number: int
    stage: str
    question: str
    metrics: tuple[str, ...]
    limit: str
    source: str
    change: str
    look: Callable[[RunTable], Found | None]


OURS = "judgement"
SIGNATURES = (
    Signature(17, "scenario", "Does each scenario reach the model?", ("train/same_input_rate",),
              "> 80 % of the groups, reward not risen or ids differ", OURS,
              "Put the scenario into the messages: print those of two groups and compare them.", same_input),
    Signature(18, "scenario", "Do prompts have a text?", ("train/empty_prompt_rate",), "> 5 %", OURS,
              "Print the messages of an example, and mend what fills them in.", empty_prompt),
    Signature(19, "scenario", "Is validation held out?", ("val/reward",),
              "> 50 % of the ids of the last validation in the last 20 steps", OURS,
              "Evaluate on scenarios that are never trained.", overlap),
    Signature(1, "rollout", "Do rollouts end?", ("train/exception_rate",), "> 5 %", OURS,
              "Read the exception and fix the rollout or its tools.", failing),
    Signature(3, "rollout", "Can tool calls be read?", ("train/malformed_call_rate",), "> 10 %", OURS,
              "Show the format in the prompt or by SFT, or set tool_choice='required'.", malformed),
    Signature(21, "rollout", "Are replies words?", ("train/noise_rate",), "> 10 %, reward not risen", OURS,
              "The base does not know these words, or the format. Use art/smollm2 or a model of the hub, "
              "or the words that `art models card` shows of art/nano-words; or SFT first.", noise),
    Signature(4, "rollout", "Do replies fit their limit?", ("train/truncated_rate",), "> 10 %",
              "DAPO, arXiv:2503.14476", "Raise max_tokens, or let the reward punish length.", truncated),
    Signature(2, "reward", "Is every rollout scored?", ("train/unscored_rate",), "> 5 %", OURS,
              "Check the judge, its budget and its limits.", unscored),
    Signature(13, "reward", "Does the judge stay the same?", ("train/group_judge/alarm_*",),
              "alarms in > 50 % of groups", "the alarms of JudgeChecks",
              "Read the judge's words for these rollouts, and mend its rubric.", judge_alarm),
    Signature(25, "reward", "Are rewarded turns paid?", ("train/turn_reward_zero_rate",),
              "> 95 % of such rollouts, reward not risen", OURS,
              "Print what the environment or the judge gives to turns, and mend it; or train with an "
              "algorithm of rollouts.", unpaid_turns),
    Signature(26, "reward", "Does more than one turn earn something?", ("train/turn_reward_top_share",),
              "> 90 % of a rollout's, reward not risen", OURS,
              "Reward what the other turns do too, or scale that turn down. If one turn decides, use "
              "turn_rloo without rewards of turns.", one_turn),
    Signature(11, "reward", "Does the reward pay for length?",
              ("train/reward_length_correlation", "train/completion_tokens_p50"), "> 0.5 and length x 1.5",
              "arXiv:2310.03716, arXiv:2503.20783", "Take length out of the reward, or punish it.",
              length_hacking),
    Signature(12, "reward", "Does the reward mean what you want?", ("train/reward", "val/reward"),
              "slopes of opposite sign, 95 %", "Gao et al., arXiv:2210.10760",
              "Read rollouts with a high reward, and mend the reward before you train on.", reward_hacking),
    Signature(5, "group", "Do groups have different rewards?", ("data/step_num_groups_trainable",),
              "> 50 % equal over 5 steps, reward not risen", "DAPO, arXiv:2503.14476",
              "Use scenarios of medium difficulty, larger groups or a finer reward.", no_signal),
    Signature(6, "group", "Can the rollouts be trained?",
              ("data/sheet/stale_rollouts", "data/sheet/untrainable_rollouts", "offpolicy/steps_max"),
              "> 20 %, or > 8 steps old", "ScaleRL, arXiv:2510.13786; " + OURS,
              "Lower max_steps_off_policy or the number of concurrent rollouts.", stale),
    Signature(22, "group", "Does each step train something?", ("data/step_num_gradient_steps",),
              ">= 3 steps in a row do not, reward not risen", OURS,
              "Read the sheet of a step: it says why its rollouts are not trained. Stop the run meanwhile.",
              untrained),
    Signature(27, "gradient", "Does the algorithm look at turns?",
              ("train/turn_rewarded_rate", "reward/turn_return_mean"), "a step does not", OURS,
              "Choose an algorithm of turns: turn_rloo, or another one of `art algorithms`. A server of an "
              "older release has none.", ignored_turns),
    Signature(7, "gradient", "Are engine and trainer one policy?",
              ("loss/mismatch_k3", "loss/logprob_difference_mean"), "k3 > 1e-3, mean > 0.03",
              "Liu et al., When speed kills stability (2025)",
              "Run `art audit-model`, or set truncated_importance_sampling=2.0.", mismatch),
    Signature(8, "gradient", "Does the policy move too far?", ("loss/clipped_share", "loss/kl_policy_ref"),
              "clipped > 30 %, KL x 3 without reward", "PPO's target_kl; Schulman's k3; " + OURS,
              "Lower the learning rate, or make fewer updates per batch.", blow_up),
    Signature(9, "gradient", "Is the gradient sane?", ("loss/grad_norm",),
              "> 1 and > 10 x the running median and the reward falls, or < 1e-8", OURS,
              "Lower the learning rate, or use more rollouts per step.", gradient),
    Signature(20, "gradient", "Did the policy survive its steps?",
              ("train/reward", "data/step_num_groups_trainable"),
              "the reward falls beyond chance, and then <= 20 % of groups have a signal", OURS,
              "Divide the learning rate by ten, and fork from a checkpoint before the fall.", divergence),
    Signature(10, "gradient", "Does the policy still explore?", ("loss/entropy",),
              "< 30 % of the start in the first fifth, reward flat", "arXiv:2505.22617",
              "Divide the learning rate by three.", collapse),
    Signature(23, "gradient", "Does it still answer in several ways?",
              ("train/same_reply_rate", "train/reward_max"),
              "> 95 % of the replies of 5 steps are one, reward 10 % below the best rollout's", OURS,
              "Fork from a step before, divide the learning rate by three, and sample at temperature 1.0. If "
              "the first step said it too, change the prompt or the base, or use SFT first.", one_answer),
    Signature(14, "gradient", "Is the learning rate large enough?",
              ("loss/learning_rate", "loss/learning_rate_by_size"), "< 1/10 of the size's, reward flat",
              "LoRA without regret (2025)", "Take the learning rate of loss/learning_rate_by_size.", slow),
    Signature(24, "gradient", "Does the reward rise?", ("train/reward", "train/reward_max"),
              "not in 30 steps, 10 % below the best rollout's, nothing else found", OURS,
              "Read rollouts. Then triple the learning rate, make larger groups, or use easier scenarios.",
              plateau),
    Signature(15, "promotion", "Is the last step the best?", ("val/reward", "val/reward_sem"),
              "best - last > 2 standard errors", OURS, "Fork from the best step.", fell),
    Signature(16, "promotion", "Is the engine the limit?", ("throughput/step_trainer_idle_s",),
              "> 50 % idle", OURS, "Add replicas of the engine or more concurrent rollouts.", idle),
)  # fmt: skip
"""The signatures in the order of the chain. The numbers are names, which stay."""


@dataclass(frozen=True)
class Cause:
    """The signatures that one of a later stage makes appear, if they are not there in the steps before."""

    numbers: frozenset[int]
    first_steps: int | None = None
    """None: those before its own first step."""


LAST_RESORT = 24
"""It is told where no other signature is seen: all of them make a reward flat."""
CAUSES: Mapping[int, Cause] = MappingProxyType(
    {
        20: Cause(frozenset(one.number for one in SIGNATURES if one.number != 20)),
        11: Cause(frozenset({4, 21}), first_steps=ENDS),
        23: Cause(frozenset({10}), first_steps=ENDS),
    }
)
"""A policy that has diverged fails everywhere; a reward that pays for length ends at the limit of tokens."""
