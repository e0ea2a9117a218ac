"""`art eval`: the mean reward of one checkpoint, sampled and greedy, in a table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from art.cli.run_options import environment_options_from
from art.errors import ConfigurationError
from art.runs.quickstart import Evaluation
from art.runs.report import interval
from art.tracking.folders import NamedModel, find_model
from art.tracking.model_files import choose_step
from art.tracking.names import check_split
from art_extensions.evaluation.checkpoint_scores import (
    MODES,
    CheckpointScore,
    RolloutSource,
    evaluate,
    log_score,
    paired_difference,
    with_checkpoint,
)


@dataclass(frozen=True, kw_only=True)
class EvalChoices:
    """The options of the verb."""

    task: str | None
    environment: str | None
    environment_options: Sequence[str]
    """KEY=VALUE words."""
    harness: str | None
    rollout: str | None
    scenarios: str | None
    rollouts: int | None
    each: int
    """Rollouts of a scenario."""
    success: float
    against: int | None
    """Another step of the model, to compare with."""
    sampling: str
    temperature: float
    seed: int
    concurrency: int
    split: str

    def source(self) -> RolloutSource:
        """Raises ConfigurationError for options that do not fit each other, or name nothing."""
        if self.sampling not in MODES:
            raise ConfigurationError(f"--sampling {self.sampling!r}: choose one of {', '.join(MODES)}")
        check_split(self.split)
        given = {"--environment-option": self.environment_options, "--harness": self.harness}
        if self.environment is None and (option := next((name for name, one in given.items() if one), None)):
            raise ConfigurationError(f"{option} is for --environment NAME: give it as well")
        options = (self.task, self.environment, self.rollout, self.scenarios)
        match [option is not None for option in options]:
            case [True, False, False, False]:
                source = RolloutSource.of_task(str(self.task))
            case [False, True, False, False]:
                name = str(self.environment)
                made = environment_options_from(name, self.environment_options, self.harness)
                source = RolloutSource.of_environment(name, **made)
            case [False, False, True, True]:
                source = RolloutSource.of_function(str(self.rollout), str(self.scenarios))
            case _:
                raise ConfigurationError(
                    "give either --task NAME, or --environment NAME, or --rollout MODULE:FUNCTION and "
                    "--scenarios FILE"
                )
        if "greedy" in MODES[self.sampling]:
            source.check_greedy()
        return source


def evaluate_model(
    text: str, choices: EvalChoices, *, best: str | None, data_dir: Path, as_json: bool
) -> None:
    """Evaluates, logs and prints. Raises what the rollouts, the server or the options raise."""
    source = choices.source()
    named = find_model(text, data_dir)
    step, other = choose_step(named, best=best), choices.against
    if other is not None and choose_step(replace(named, step=None), step=other) == step:
        raise ConfigurationError(f"--against {other}: that is the step which is evaluated; name another one")
    steps = [step] if other is None else [other, step]
    found = asyncio.run(score_steps(named, steps, source, choices, data_dir))
    scores, before = found[step], {} if other is None else found[other]
    gains = {name: paired_difference(score, scores[name]) for name, score in before.items()}
    if as_json:
        plain: dict[str, Any] = {"model": named.key, "step": step, "of": source.name}
        plain |= {name: one.to_dict() for name, one in scores.items()}
        if other is not None:
            plain["against"] = {"step": other, **{name: one.to_dict() for name, one in before.items()}}
            plain["difference"] = {name: gain and asdict(gain) for name, gain in gains.items()}
        typer.echo(json.dumps(plain, indent=1))
        return
    console = Console()
    for shown, of_step in found.items():
        console.print(score_table(f"{named.key}@{shown} on {source.name}", of_step))
    for name, gain in gains.items():
        difference = "no scenario was scored at both" if gain is None else gain.signed()
        console.print(f"{name}: reward of step {step} less that of step {other}, by scenario: {difference}")


async def score_steps(
    named: NamedModel, steps: Sequence[int], source: RolloutSource, choices: EvalChoices, data_dir: Path
) -> dict[int, dict[str, CheckpointScore]]:
    """Returns the scores of each step. What the source has started is ended."""
    try:
        return {step: await score_checkpoint(named, step, source, choices, data_dir) for step in steps}
    finally:
        if source.close is not None:
            await source.close()


async def score_checkpoint(
    named: NamedModel, step: int, source: RolloutSource, choices: EvalChoices, data_dir: Path
) -> dict[str, CheckpointScore]:
    """Returns the scores by the name of the sampling. They are in the model's history then."""
    scores: dict[str, CheckpointScore] = {}
    async with with_checkpoint(named, step, data_dir) as model:
        for sampling in MODES[choices.sampling]:
            score, groups = await evaluate(
                model,
                source,
                rollouts=choices.rollouts or source.count * (1 if source.endless else choices.each),
                temperature=choices.temperature if sampling == "sampled" else 0.0,
                concurrency=choices.concurrency,
                seed=choices.seed,
                each=choices.each,
                success=choices.success,
                title=f"{named.key}@{step} {sampling}",
            )
            await log_score(model, sampling, score, groups, split=choices.split, step=step)
            scores[sampling] = score
    return scores


def _mean_with_error(found: Evaluation, name: str) -> str:
    if name not in found.means:
        return ""
    error = f" ± {found.errors[name]:.4f}" if name in found.errors else " (one rollout: no error)"
    return f"{found.means[name]:.4f}{error}"


def score_table(title: str, scores: dict[str, CheckpointScore]) -> Table:
    """Returns a line for each metric: mean and standard error."""
    table = Table(title=Text(title), box=None, pad_edge=False, title_justify="left")
    for heading in ("mean ± standard error", *scores):
        table.add_column(heading, justify="left" if "±" in heading else "right")
    names = dict.fromkeys(name for one in scores.values() for name in one.evaluation.means)
    for name in names:
        cells = [_mean_with_error(one.evaluation, name) for one in scores.values()]
        table.add_row(Text(name), *cells, style="bold" if name == "reward" else "")
    table.add_row("95 % interval by scenario", *(interval(one.reward) for one in scores.values()))
    for k in dict.fromkeys(k for one in scores.values() for k in one.pass_at):
        table.add_row(f"pass@{k}", *(f"{one.pass_at[k]:.4f}" for one in scores.values()))
    for what in ("rollouts", "failed", "unscored"):
        table.add_row(what, *(str(one.to_dict()[what]) for one in scores.values()), style="dim")
    return table
