"""Says where a run breaks first: sixteen signatures over the files of its model, in the order of the chain.

    scenario -> rollout -> reward -> group -> gradient -> promotion

A later stage that looks ill is often a consequence of an earlier one, so the first is the one to mend. It
reads files only: `history.jsonl` and, where there is one, the record of the rollouts. No server has to run.
Scenarios that are too hard or too easy show as groups without a signal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from art.errors import ConfigurationError
from art.tracking.folders import ModelPaths, find_model, model_folders
from art.tracking.model_files import read_history
from art.tracking.step_record import read_rollouts, recorded_steps
from art.wire.rollout_record import RolloutRecord

STAGES = ("scenario", "rollout", "reward", "group", "gradient", "promotion")
WINDOW, ENDS, MOST_EXAMPLES = 5, 3, 3
"""Steps of a mean; steps at each end of a run that are compared; rollouts shown for a finding."""


@dataclass(frozen=True)
class Found:
    """The sight of a signature: a sentence with numbers, the steps, and which rollouts are examples of it."""

    words: str
    steps: tuple[int, ...]
    is_example: Callable[[RolloutRecord], bool] = lambda one: False
    change: str | None = None
    """Replaces the signature's own, where what was seen says more."""


@dataclass(frozen=True)
class Example:
    step: int
    group: int
    place: int
    rollout: str
    reward: float | None
    fate: str


@dataclass(frozen=True)
class RunFinding:
    """One signature that a run shows."""

    number: int
    stage: str
    words: str
    change: str
    steps: tuple[int, ...]
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """The findings of a run in the order of the chain; the first is the cause to look at."""

    run: str
    steps: int
    findings: tuple[RunFinding, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Returns plain values: `first_broken_stage` (None: nothing was found) and `findings`."""
        first = self.findings[0].stage if self.findings else None
        return {"run": self.run, "steps": self.steps, "first_broken_stage": first} | {
            "findings": [asdict(one) for one in self.findings]
        }

    def text(self) -> str:
        """Returns the lines for a terminal."""
        if not self.findings:
            return f"{self.run}: nothing found in {self.steps} steps."
        first = self.findings[0]
        lines = [f"{self.run}: {self.steps} steps. The first broken stage is: {first.stage}.", ""]
        for finding in self.findings:
            if finding is not first and finding is self.findings[1]:
                lines += ["", "Also found. It may be a consequence:"]
            where = f"steps {finding.steps[0]} to {finding.steps[-1]}"
            lines += [f"  {finding.stage}: {finding.words} ({where})", f"    Change: {finding.change}"]
            lines += [
                f"    Example: step {one.step}, group {one.group}, rollout {one.place} ({one.rollout}): "
                f"reward {one.reward}, {one.fate}"
                for one in finding.examples
            ]
        return "\n".join(lines)


@dataclass(frozen=True)
class RunTable:
    """The numbers of each training step, and of each step with an evaluation."""

    files: ModelPaths
    train: dict[int, dict[str, float]] = field(default_factory=dict)
    val: dict[int, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> RunTable:
        """Raises ConfigurationError where no training step has been logged."""
        train: dict[int, dict[str, float]] = {}
        val: dict[int, dict[str, float]] = {}
        for row in read_history(ModelPaths(folder).history):
            if isinstance(step := row.get("step"), int):
                numbers = {k: float(v) for k, v in row.items() if isinstance(v, int | float)}
                evaluated = any(name.startswith(("val/", "test/")) for name in numbers)  # with own counts
                (val if evaluated else train).setdefault(step, {}).update(numbers)
        train = {s: row for s, row in sorted(train.items()) if any(k.startswith("train/") for k in row)}
        val = {step: row for step, row in sorted(val.items()) if "val/reward" in row}
        if not train:
            raise ConfigurationError(
                f"{folder} has no training step in history.jsonl: nothing can be explained before the first "
                "`model.train` or `model.log`"
            )
        return cls(ModelPaths(folder), train, val)

    def column(self, name: str) -> dict[int, float]:
        """Returns the training steps that have the number, and it."""
        return {step: row[name] for step, row in self.train.items() if name in row}

    def share(self, part: str, whole: str) -> dict[int, float]:
        """Returns part / whole for each step that has the whole; a part that is not logged is 0."""
        return {s: row.get(part, 0.0) / row[whole] for s, row in self.train.items() if row.get(whole)}

    def gain(self, steps: Sequence[int] = ()) -> float:
        """Returns how much the reward of these steps (none: the last) is above that of the first, less what
        chance allows: two standard errors of the difference. Above 0: the run learned.
        """
        return self.rise([*self.train][:ENDS], [*(steps or [*self.train][-ENDS:])])

    def rise(self, first: Sequence[int], last: Sequence[int]) -> float:
        """Returns how much the last steps' reward is above that of the first, less what chance allows."""
        before, after = self._mean(first, "train/reward"), self._mean(last, "train/reward")
        if before is None or after is None or set(first) == set(last):
            return 0.0
        noise = math.hypot(
            (self._mean(first, "train/reward_sem") or 0.05) / math.sqrt(len(first)),
            (self._mean(last, "train/reward_sem") or 0.05) / math.sqrt(len(last)),
        )
        return after - before - 2 * noise

    def _mean(self, steps: Iterable[int], name: str) -> float | None:
        found = [self.train[step][name] for step in steps if name in self.train[step]]
        return fmean(found) if found else None


def worst(values: dict[int, float]) -> tuple[float, tuple[int, ...]]:
    """Returns the highest mean over five steps that follow each other (fewer: all), and these steps."""
    steps = [*values]
    starts = range(max(1, len(steps) - WINDOW + 1))
    windows = [tuple(steps[start : start + WINDOW]) for start in starts if steps]
    means = [(fmean(values[step] for step in one), one) for one in windows]
    return max(means, key=lambda mean: mean[0], default=(0.0, ()))  # the first of equals


def growth(values: dict[int, float]) -> float:
    """Returns the mean of the last steps over that of the first; 1 where too few are known."""
    known = [*values.values()]
    if len(known) < 2 * ENDS or fmean(known[:ENDS]) <= 0:
        return 1.0
    return fmean(known[-ENDS:]) / fmean(known[:ENDS])


def slope(values: dict[int, float], errors: dict[int, float]) -> tuple[float, float]:
    """Returns the weighted least squares slope over the steps and its standard error."""
    points = [(s, v, errors[s] ** -2) for s, v in values.items() if errors.get(s, 0.0) > 0]
    if len(points) < ENDS:
        return 0.0, math.inf
    weight = sum(w for _, _, w in points)
    middle = sum(w * s for s, _, w in points) / weight
    spread = sum(w * (s - middle) ** 2 for s, _, w in points)
    return sum(w * (s - middle) * v for s, v, w in points) / spread, spread**-0.5


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
    most = f", most often {kinds.most_common(1)[0][0]!r}" if kinds else ""
    return Found(f"{share:.0%} of the rollouts failed{most}", steps, lambda one: one.failure is not None)


def malformed(table: RunTable) -> Found | None:
    share, steps = worst(table.column("train/malformed_call_rate"))
    return Found(f"{share:.0%} of the replies have a malformed tool call", steps) if share > 0.1 else None


def truncated(table: RunTable) -> Found | None:
    share, steps = worst(table.column("train/truncated_rate"))
    if share <= 0.1:
        return None
    words = f"{share:.0%} of the rollouts end at the limit of tokens"
    return Found(words, steps, lambda one: one.truncated)


def unscored(table: RunTable) -> Found | None:
    share, steps = worst({step: row.get("train/unscored_rate", 0.0) for step, row in table.train.items()})
    words = f"{share:.0%} of the rollouts have no score"
    return Found(words, steps, lambda one: one.unscored_reason is not None) if share > 0.05 else None


def judge_alarm(table: RunTable) -> Found | None:
    names = {name for row in table.train.values() for name in row if "group_judge/alarm_" in name}
    rang = [(worst(table.column(name)), name.rpartition("alarm_")[2]) for name in sorted(names)]
    (share, steps), check = max(rang, default=((0.0, ()), ""))
    return (
        Found(f"the judge's check {check!r} rang in {share:.0%} of the groups", steps)
        if share > 0.5
        else None
    )


def length_hacking(table: RunTable) -> Found | None:
    correlation, steps = worst(table.column("train/reward_length_correlation"))
    grown = growth(table.column("train/completion_tokens_p50"))
    if correlation <= 0.5 or grown < 1.5:
        return None
    return Found(
        f"reward and length correlate at {correlation:.2f}, and replies grew {grown:.1f} times", steps
    )


def reward_hacking(table: RunTable) -> Found | None:
    val = {step: row["val/reward"] for step, row in table.val.items()}
    up, up_error = slope(table.column("train/reward"), table.column("train/reward_sem"))
    down, down_error = slope(val, {s: row.get("val/reward_sem", 0.0) for s, row in table.val.items()})
    if up < 1.96 * up_error or down > -1.96 * down_error:
        return None
    words = f"train/reward rises by {up:.3f} a step and val/reward falls by {-down:.3f}, both beyond chance"
    return Found(words, tuple(val))


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
    words = f"{share:.0%} of the groups have one reward only"
    if good or bad:
        words += f"; of all groups {good:.0%} are at the highest, {bad:.0%} at the lowest"
    return Found(words, steps, lambda one: one.fate == "zero_advantage", change)


def stale(table: RunTable) -> Found | None:
    started = "data/sheet/started_rollouts"
    shares = {
        kind: worst(table.share(f"data/sheet/{kind}_rollouts", started)) for kind in ("stale", "untrainable")
    }
    kind, (share, steps) = max(shares.items(), key=lambda item: item[1][0])
    if share > 0.2:
        return Found(f"{share:.0%} of the rollouts are {kind}", steps, lambda one: one.fate == kind)
    lag, steps = worst(table.column("offpolicy/steps_max"))
    return Found(f"samples are up to {lag:.0f} steps old", steps) if lag > 8 else None


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
        return Found(f"the loss clips {share:.0%} of the tokens", steps)
    kl, known = growth(table.column("loss/kl_policy_ref")), tuple(table.column("loss/kl_policy_ref"))
    if kl > 3 and table.gain() <= 0 and table.train[known[-1]]["loss/kl_policy_ref"] > 0.05:
        return Found(f"the KL from the reference grew {kl:.1f} times and the reward did not", known[-ENDS:])
    return None


def gradient(table: RunTable) -> Found | None:
    trained = table.column("data/step_num_gradient_steps")
    norms = {s: v for s, v in table.column("loss/grad_norm").items() if trained.get(s, 1.0) > 0}
    if zero := tuple(step for step, norm in norms.items() if norm < 1e-8):
        return Found(f"the gradient of {len(zero)} steps is 0 although they trained", zero)
    steps = [*norms]
    for place in range(ENDS, len(steps)):
        usual = median(norms[step] for step in steps[:place])
        before, after = steps[max(0, place - WINDOW) : place], steps[place : place + WINDOW]
        norm = norms[steps[place]]
        # A single peak is clipped, and healthy runs have some: it is a fault where the reward falls after it.
        if norm > max(1.0, 10 * usual) and table.rise(after, before) > 0:
            words = (
                f"the gradient's norm is {norm:.2f}, {norm / usual:.0f} times the usual, and the reward fell"
            )
            return Found(words, (steps[place],))
    return None


def collapse(table: RunTable) -> Found | None:
    entropy = table.column("loss/entropy")
    steps = [*entropy]
    early = steps[ENDS : max(WINDOW, math.ceil(len(steps) / 5)) + 1]
    first = fmean([entropy[step] for step in steps[:ENDS]] or [0.0])
    low = tuple(step for step in early if entropy[step] < 0.3 * first)
    if not low or table.gain() > 0:
        return None
    return Found(f"the entropy fell from {first:.3f} to {entropy[low[0]]:.3f} and the reward is flat", low)


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
    return Found(f"the trainer waits {share:.0%} of the time for rollouts", steps) if share > 0.5 else None


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
    Signature(1, "rollout", "Do rollouts end?", ("train/exception_rate",), "> 5 %", OURS,
              "Read the exception and fix the rollout or its tools.", failing),
    Signature(3, "rollout", "Can tool calls be read?", ("train/malformed_call_rate",), "> 10 %", OURS,
              "Show the format in the prompt or by SFT, or set tool_choice='required'.", malformed),
    Signature(4, "rollout", "Do replies fit their limit?", ("train/truncated_rate",), "> 10 %",
              "DAPO, arXiv:2503.14476", "Raise max_tokens, or let the reward punish length.", truncated),
    Signature(2, "reward", "Is every rollout scored?", ("train/unscored_rate",), "> 5 %", OURS,
              "Check the judge, its budget and its limits.", unscored),
    Signature(13, "reward", "Does the judge stay the same?", ("train/group_judge/alarm_*",),
              "alarms in > 50 % of groups", "the alarms of JudgeChecks",
              "Read the judge's words for these rollouts, and mend its rubric.", judge_alarm),
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
    Signature(10, "gradient", "Does the policy still explore?", ("loss/entropy",),
              "< 30 % of the start in the first fifth, reward flat", "arXiv:2505.22617",
              "Divide the learning rate by three.", collapse),
    Signature(14, "gradient", "Is the learning rate large enough?",
              ("loss/learning_rate", "loss/learning_rate_by_size"), "< 1/10 of the size's, reward flat",
              "LoRA without regret (2025)", "Take the learning rate of loss/learning_rate_by_size.", slow),
    Signature(15, "promotion", "Is the last step the best?", ("val/reward", "val/reward_sem"),
              "best - last > 2 standard errors", OURS, "Fork from the best step.", fell),
    Signature(16, "promotion", "Is the engine the limit?", ("throughput/step_trainer_idle_s",),
              "> 50 % idle", OURS, "Add replicas of the engine or more concurrent rollouts.", idle),
)  # fmt: skip
"""In the order of the chain. The numbers are names, which stay."""


def explain(run: str, data_dir: Path = Path(".art")) -> Explanation:
    """Returns what the sixteen signatures find.

    run: `project/name` in the data folder, the folder of a model, or a folder that holds one model alone.
    Raises ConfigurationError where there is no such model, or no step of training.
    """
    folder = _model_folder(run, data_dir)
    table = RunTable.read(folder)
    return Explanation(run, len(table.train), tuple(_findings(table)))


def _findings(table: RunTable) -> Iterator[RunFinding]:
    recorded = set(recorded_steps(table.files.path))
    for one in SIGNATURES:
        if (found := one.look(table)) is not None:
            examples = [
                Example(step, record.group, record.place, record.rollout, record.reward, record.fate)
                for step in found.steps
                if step in recorded
                for record in read_rollouts(table.files.path, step)
                if found.is_example(record)
            ]
            change = found.change or one.change
            shown = tuple(examples[:MOST_EXAMPLES])
            yield RunFinding(one.number, one.stage, found.words, change, found.steps, shown)


def _model_folder(run: str, data_dir: Path) -> Path:
    path = Path(run)
    if not path.is_dir():
        return find_model(run, data_dir).files.path
    if ModelPaths(path).history.exists():
        return path
    found = [one for root in (path, path / "art", path / ".art") for one in model_folders(root).values()]
    if len(found) != 1:
        there = ", ".join(map(str, found)) or "none"
        raise ConfigurationError(f"{run!r} must hold one model; found: {there}. Name the folder of one")
    return found[0]
